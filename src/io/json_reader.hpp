// JSON from files that nobody vouches for: bounded depth and size, no duplicate keys, and typed
// access that names the place of what it does not like.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xstage::io {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kMaxJsonDepth = 32;
inline constexpr std::size_t kMaxJsonMembers = 256;  // of one object

// Throws Error(bad_file) with line and column (syntax) or JSON pointer (depth, duplicate key).
[[nodiscard]] Json parse_json(std::string_view text, std::string_view file_name);

// Indented JSON in which objects and arrays of plain values stay on one line while they fit.
[[nodiscard]] std::string format_json(const Json& value);

// A value, its JSON pointer, and the file that it came from (which must outlive the cursor).
class JsonCursor {
 public:
  JsonCursor(const Json& value, std::string_view file_name, std::vector<std::string>& warnings)
      : value_(&value), file_name_(file_name), warnings_(&warnings) {}

  [[noreturn]] void fail(std::string_view reason) const;

  [[nodiscard]] JsonCursor at(std::string_view key) const;                   // must be there
  [[nodiscard]] std::optional<JsonCursor> find(std::string_view key) const;  // absent or null: none
  [[nodiscard]] std::vector<JsonCursor> elements() const;
  [[nodiscard]] double number(double min, double max) const;
  [[nodiscard]] int whole(int min, int max) const;
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] bool is_text() const { return value_->is_string(); }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  // Warns of every member of this object that is not in the list.
  void known(std::initializer_list<std::string_view> keys) const;

 private:
  JsonCursor child(const Json& value, std::string_view step) const;
  void require(bool condition, std::string_view what) const;

  const Json* value_;
  std::string pointer_;
  std::string_view file_name_;
  std::vector<std::string>* warnings_;
};

}  // namespace xstage::io

#include "io/json_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file_io.hpp"

namespace xstage::io {
namespace {

// '~' and '/' in keys, as RFC 6901 wants them.
std::string pointer_step(std::string_view key) {
  std::string step = "/";
  for (const char c : printable(key)) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return step;
}

// Builds the document from parser events and stops at the first thing that is not allowed.
class Builder {
 public:
  explicit Builder(Json& root) : root_(root) {}

  bool null() { return add(nullptr) != nullptr; }
  bool boolean(bool value) { return add(value) != nullptr; }
  bool number_integer(Json::number_integer_t value) { return add(value) != nullptr; }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value) != nullptr; }
  bool number_float(Json::number_float_t value, const std::string& /*token*/) {
    return add(value) != nullptr;
  }
  bool string(std::string& value) { return add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t& /*value*/) { return stop("binary data"); }
  bool start_object(std::size_t /*count*/) { return open(Json::object()); }
  bool start_array(std::size_t /*count*/) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    Json& object = *open_.back();
    if (object.size() == kMaxJsonMembers) {
      return stop(fmt::format("over {} members in one object", kMaxJsonMembers));
    }
    if (object.contains(name)) return stop(fmt::format("key '{}' twice", printable(name)));
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) {
    error_position_ = position;
    reason_ = error.what();
    return false;
  }

  // Position is 0 unless the text itself is malformed.
  [[nodiscard]] std::size_t error_position() const { return error_position_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] std::string pointer() const {
    std::string pointer;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) pointer += step_into_last(*open_[i]);
    return pointer;
  }

 private:
  static std::string step_into_last(const Json& container) {
    if (container.is_array()) return fmt::format("/{}", container.size() - 1);
    return pointer_step(std::prev(container.end()).key());
  }

  bool stop(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }
  Json* add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& container = *open_.back();
    if (container.is_array()) {
      container.push_back(std::move(value));
      return &container.back();
    }
    return &(container[key_] = std::move(value));
  }
  bool open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      return stop(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    }
    open_.push_back(add(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string reason_;
  std::size_t error_position_ = 0;
};

// The parser's message without its own prefix: "unexpected end of input; expected ...".
std::string syntax_reason(const std::string& what) {
  std::size_t start = what.find("parse error at");
  if (start == std::string::npos) start = what.find("] ");
  const std::size_t colon = what.find(": ", start == std::string::npos ? 0 : start);
  return printable(colon == std::string::npos ? what : what.substr(colon + 2), 160);
}

std::string line_and_column(std::string_view text, std::size_t position) {
  const std::string_view before = text.substr(0, std::min(position, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_start = before.rfind('\n');
  const std::size_t column =
      line_start == std::string_view::npos ? before.size() : before.size() - line_start - 1;
  return fmt::format("{}:{}", line, std::max<std::size_t>(column, 1));
}

constexpr std::size_t kLineWidth = 100;

bool is_container_of_plain(const Json& value) {
  return std::none_of(value.begin(), value.end(),
                      [](const Json& element) { return element.is_structured(); });
}

void format_to(std::string& text, const Json& value, std::size_t indent, std::size_t column) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  if (!value.is_structured() || value.empty()) {
    text += value.dump(-1, ' ', false, kReplace);
    return;
  }
  const bool is_object = value.is_object();
  std::string one_line(1, is_object ? '{' : '[');
  if (is_container_of_plain(value)) {
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (it != value.begin()) one_line += ", ";
      if (is_object) one_line += Json(it.key()).dump(-1, ' ', false, kReplace) + ": ";
      one_line += it->dump(-1, ' ', false, kReplace);
      if (column + one_line.size() > kLineWidth) break;
    }
    one_line += is_object ? '}' : ']';
    if (column + one_line.size() <= kLineWidth) {
      text += one_line;
      return;
    }
  }
  text += is_object ? '{' : '[';
  const std::string margin(indent + 2, ' ');
  for (auto it = value.begin(); it != value.end(); ++it) {
    text += it == value.begin() ? "\n" : ",\n";
    std::string key = is_object ? Json(it.key()).dump(-1, ' ', false, kReplace) + ": " : "";
    text += margin + key;
    format_to(text, *it, indent + 2, margin.size() + key.size() + 1);
  }
  text += '\n' + std::string(indent, ' ') + (is_object ? '}' : ']');
}

}  // namespace

Json parse_json(std::string_view text, std::string_view file_name) {
  Json root;
  Builder builder(root);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return root;
  if (builder.error_position() > 0) {
    fail_file(file_name, line_and_column(text, builder.error_position()),
              syntax_reason(builder.reason()));
  }
  fail_file(file_name, builder.pointer(), builder.reason());
}

std::string format_json(const Json& value) {
  std::string text;
  format_to(text, value, 0, 0);
  return text + '\n';
}

void JsonCursor::fail(std::string_view reason) const {
  fail_file(file_name_, pointer_.empty() ? "/" : pointer_, reason);
}

void JsonCursor::require(bool condition, std::string_view what) const {
  if (!condition) fail(fmt::format("{}, not {}", value_->type_name(), what));
}

JsonCursor JsonCursor::child(const Json& value, std::string_view step) const {
  JsonCursor cursor = *this;
  cursor.value_ = &value;
  cursor.pointer_ += pointer_step(step);
  return cursor;
}

JsonCursor JsonCursor::at(std::string_view key) const {
  require(value_->is_object(), "an object");
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) fail(fmt::format("'{}' is missing", key));
  return child(*found, key);
}

std::optional<JsonCursor> JsonCursor::find(std::string_view key) const {
  require(value_->is_object(), "an object");
  const auto found = value_->find(std::string(key));
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return child(*found, key);
}

std::vector<JsonCursor> JsonCursor::elements() const {
  require(value_->is_array(), "an array");
  std::vector<JsonCursor> cursors;
  cursors.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    cursors.push_back(child((*value_)[i], fmt::format("{}", i)));
  }
  return cursors;
}

double JsonCursor::number(double min, double max) const {
  require(value_->is_number(), "a number");
  const auto number = value_->get<double>();
  if (!(number >= min && number <= max)) {
    fail(fmt::format("{:g} is out of range: legal {:g} to {:g}", number, min, max));
  }
  return number;
}

int JsonCursor::whole(int min, int max) const {
  const double value = number(min, max);
  if (value != std::floor(value)) fail(fmt::format("{:g} is not a whole number", value));
  return static_cast<int>(value);
}

const std::string& JsonCursor::text() const {
  require(value_->is_string(), "a string");
  return value_->get_ref<const std::string&>();
}

bool JsonCursor::boolean() const {
  require(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

void JsonCursor::known(std::initializer_list<std::string_view> keys) const {
  require(value_->is_object(), "an object");
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    if (std::find(keys.begin(), keys.end(), it.key()) == keys.end()) {
      warnings_->push_back(fmt::format("{}:{}: '{}' is not known and not read", file_name_,
                                       pointer_.empty() ? "/" : pointer_, printable(it.key())));
    }
  }
}

}  // namespace xstage::io

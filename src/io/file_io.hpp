// Whole files in and out, bounded in size.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace xstage::io {

inline constexpr std::size_t kMaxSampleFileBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxProfileBytes = std::size_t{16} << 20;

// The bytes of a file, pipe or "-" (standard input). Throws Error(bad_file) if it cannot be read
// or holds more than `max_bytes`; at most `max_bytes` + 1 bytes are read.
[[nodiscard]] std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

// `text` as it may be shown in a message: at most `max_chars`, control and non-ASCII bytes escaped.
[[nodiscard]] std::string printable(std::string_view text, std::size_t max_chars = 60);

[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

// Throws Error(bad_file) "FILE:PLACE: REASON"; an empty place is left out.
[[noreturn]] void fail_file(std::string_view file_name, std::string_view place,
                            std::string_view reason);

}  // namespace xstage::io

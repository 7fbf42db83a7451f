// Any bytes as a link profile: refused with Error(bad_file), or read so that writing and reading it
// again changes nothing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "xstage/error.hpp"
#include "xstage/files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string written = xstage::format_link(xstage::parse_link(text, "fuzz").profile);
    if (xstage::format_link(xstage::parse_link(written, "again").profile) != written) std::abort();
  } catch (const xstage::Error& error) {
    if (error.category() != xstage::ErrorCategory::bad_file) std::abort();
    if (std::string_view(error.what()).find("again") == 0) std::abort();
  }
  return 0;
}

// Any bytes as a sample file: refused with Error(bad_file), or read so that writing and reading it
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
    const std::string written = xstage::format_samples(xstage::parse_samples(text, "fuzz"));
    if (xstage::format_samples(xstage::parse_samples(written, "again")) != written) std::abort();
  } catch (const xstage::Error& error) {
    if (error.category() != xstage::ErrorCategory::bad_file) std::abort();
    if (std::string_view(error.what()).find("again") == 0) std::abort();
  }
  return 0;
}

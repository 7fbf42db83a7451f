#include "xstage/version.hpp"

namespace xstage {

std::string_view version() noexcept {
  return XSTAGE_VERSION;
}

std::string_view source_commit() noexcept {
  return
#include "xstage_commit.inc"
      ;
}

}  // namespace xstage

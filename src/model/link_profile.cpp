#include "xstage/link_profile.hpp"

#include "xstage/error.hpp"

namespace xstage {

const KindFit& LinkProfile::kind(StoreKind wanted) const {
  std::string legal;
  for (const KindFit& candidate : kinds) {
    if (candidate.params.kind == wanted) return candidate;
    legal += (legal.empty() ? "" : ", ") + std::string(to_string(candidate.params.kind));
  }
  throw Error(ErrorCategory::usage, "store kind '" + std::string(to_string(wanted)) +
                                        "': the profile '" + name + "' holds " +
                                        (legal.empty() ? "none" : legal));
}

}  // namespace xstage

// Is this link what it was? Two profiles, quantity by quantity, judged from their intervals rather
// than from their values alone. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "xstage/link_profile.hpp"

namespace xstage {

enum class Change {
  same,  // within the tolerance, or one value lies in the other's interval
  faster,
  slower,
  ambiguous,  // beyond the tolerance, and the intervals only just overlap: measure again
};

struct Comparison {
  std::string kind;      // store kind, or "link" for measurements
  std::string quantity;  // "drain_rate", "t0_32k", "copy_engine_rate", ...
  std::string unit;
  double before = 0;
  double after = 0;
  Change change = Change::same;
};

// Every quantity that both profiles hold. `tolerance` is the relative difference that does not
// matter (0.02: 2 %). Throws Error(usage) if the profiles have no store kind in common or the
// tolerance is not in (0, 1).
[[nodiscard]] std::vector<Comparison> compare(const LinkProfile& before, const LinkProfile& after,
                                              double tolerance);

// slower if anything is, else ambiguous, else faster, else same.
[[nodiscard]] Change overall(const std::vector<Comparison>& comparisons) noexcept;

[[nodiscard]] std::string_view to_string(Change change) noexcept;

}  // namespace xstage

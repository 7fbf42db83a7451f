#include "xstage/compare.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "xstage/error.hpp"

namespace xstage {
namespace {

enum class Better { higher, lower };

struct Quantity {
  double value = 0;
  std::optional<Interval> interval;
};

double low(const Quantity& q) {
  return q.interval ? q.interval->low : q.value;
}
double high(const Quantity& q) {
  return q.interval ? q.interval->high : q.value;
}
bool overlap(const Quantity& a, const Quantity& b) {
  return low(a) <= high(b) && low(b) <= high(a);
}
// Either value would be a fair reading of the other measurement.
bool explains(const Quantity& a, const Quantity& b) {
  const auto within = [](const Quantity& value, const Quantity& range) {
    return range.interval && low(range) <= value.value && value.value <= high(range);
  };
  return within(a, b) || within(b, a);
}

// Without an interval on either side five times the tolerance is asked for: a single number
// scatters, too.
Change judge(const Quantity& before, const Quantity& after, Better better, double tolerance) {
  const double ratio = after.value / before.value;
  const bool bare = !before.interval && !after.interval;
  const double limit = bare ? 5 * tolerance : tolerance;
  if (!(std::abs(ratio - 1) > limit) || explains(before, after)) return Change::same;
  if (!bare && overlap(before, after)) return Change::ambiguous;
  return (ratio > 1) == (better == Better::higher) ? Change::faster : Change::slower;
}

class Comparer {
 public:
  Comparer(double tolerance, std::vector<Comparison>& results)
      : tolerance_(tolerance), results_(results) {}

  void add(std::string_view kind, const char* quantity, const char* unit, Better better,
           const std::optional<Quantity>& before, const std::optional<Quantity>& after) {
    if (!before || !after || !(before->value > 0) || !(after->value > 0)) return;
    results_.push_back({std::string(kind), quantity, unit, before->value, after->value,
                        judge(*before, *after, better, tolerance_)});
  }

 private:
  double tolerance_;
  std::vector<Comparison>& results_;
};

std::optional<Quantity> optional_of(const std::optional<double>& value,
                                    const std::optional<Interval>& interval) {
  if (!value) return std::nullopt;
  return Quantity{*value, interval};
}

void compare_kind(const KindFit& before, const KindFit& after, Comparer& comparer) {
  constexpr double kBurstBytes = 32 * 1024;
  const std::string_view kind = to_string(before.params.kind);
  const LinkParams& b = before.params;
  const LinkParams& a = after.params;
  comparer.add(kind, "drain_rate", "B/ns", Better::higher,
               Quantity{b.drain_rate, before.drain_rate_interval},
               Quantity{a.drain_rate, after.drain_rate_interval});
  comparer.add(kind, "injection_rate", "B/ns", Better::higher,
               Quantity{b.injection_rate, before.injection_rate_interval},
               Quantity{a.injection_rate, after.injection_rate_interval});
  comparer.add(kind, "capacity_mean_bytes", "bytes", Better::higher,
               optional_of(b.capacity_mean_bytes, before.capacity_mean_interval),
               optional_of(a.capacity_mean_bytes, after.capacity_mean_interval));
  comparer.add(kind, "t0_32k", "ns", Better::lower, Quantity{issue_time_empty(b, kBurstBytes), {}},
               Quantity{issue_time_empty(a, kBurstBytes), {}});
  comparer.add(kind, "visible_latency_ns", "ns", Better::lower,
               optional_of(b.visible_latency_ns, {}), optional_of(a.visible_latency_ns, {}));
}

std::optional<Quantity> measurement(const LinkProfile& profile, std::string_view name) {
  for (const Measurement& m : profile.measurements) {
    if (m.name == name) return Quantity{m.value, m.interval};
  }
  return std::nullopt;
}

}  // namespace

std::vector<Comparison> compare(const LinkProfile& before, const LinkProfile& after,
                                double tolerance) {
  if (!(tolerance > 0 && tolerance < 1)) {
    throw Error(ErrorCategory::usage,
                "tolerance " + std::to_string(tolerance) + ": legal are values between 0 and 1");
  }
  std::vector<Comparison> results;
  Comparer comparer(tolerance, results);
  for (const KindFit& b : before.kinds) {
    for (const KindFit& a : after.kinds) {
      if (a.params.kind == b.params.kind) compare_kind(b, a, comparer);
    }
  }
  if (results.empty()) {
    throw Error(ErrorCategory::usage,
                "'" + before.name + "' and '" + after.name + "' have no store kind in common");
  }
  for (const char* name : {"copy_engine_rate", "local_read_rate", "local_copy_rate"}) {
    comparer.add("link", name, "B/ns", Better::higher, measurement(before, name),
                 measurement(after, name));
  }
  for (const char* name : {"flag_one_way", "store_fence", "load_round_trip"}) {
    comparer.add("link", name, "ns", Better::lower, measurement(before, name),
                 measurement(after, name));
  }
  return results;
}

Change overall(const std::vector<Comparison>& comparisons) noexcept {
  const auto any = [&](Change change) {
    return std::any_of(comparisons.begin(), comparisons.end(),
                       [&](const Comparison& c) { return c.change == change; });
  };
  if (any(Change::slower)) return Change::slower;
  if (any(Change::ambiguous)) return Change::ambiguous;
  return any(Change::faster) ? Change::faster : Change::same;
}

std::string_view to_string(Change change) noexcept {
  switch (change) {
    case Change::same:
      return "same";
    case Change::faster:
      return "faster";
    case Change::slower:
      return "slower";
    case Change::ambiguous:
      return "ambiguous";
  }
  return "unknown";
}

}  // namespace xstage

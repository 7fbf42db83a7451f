// Legal ranges of the model's inputs. Every function throws Error(usage) that names the value and
// the legal range.
#pragma once

#include <string>
#include <string_view>

#include "xstage/model.hpp"

namespace xstage::model {

inline constexpr int kMaxProducers = 65536;
inline constexpr double kMinBytes = 1;
inline constexpr double kMaxBytes = 1e12;  // per producer and burst
inline constexpr double kMaxTimeNs = 1e15;
inline constexpr double kMaxRate = 1e6;  // B/ns
inline constexpr double kMaxSpread = 0.95;

// "1.5", "1e+308", "nan": short and the same everywhere.
[[nodiscard]] std::string to_text(double value);

// Passes if low <= value <= high (low < value if `above_low`); NaN never passes.
void check_range(std::string_view name, double value, double low, double high,
                 bool above_low = false);
void check_producers(int num_producers);
void check_bytes(double bytes);
void check_curve(const LinkParams& link);
void check_link(const LinkParams& link);
void check_burst(const Burst& burst);

}  // namespace xstage::model

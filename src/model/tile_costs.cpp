// Tile costs as values: look-up and interpolation. Files are src/io's.
#include "xstage/tile_costs.hpp"

#include <string>

#include "xstage/error.hpp"

namespace xstage {

const AttentionCost& TileCosts::attention_for(DataType dtype, int head_dim) const {
  std::string known;
  for (const AttentionCost& cost : attention) {
    if (cost.dtype == dtype && cost.head_dim == head_dim) return cost;
    known += (known.empty() ? "" : ", ") + std::string(to_string(cost.dtype)) + " x " +
             std::to_string(cost.head_dim);
  }
  throw Error(ErrorCategory::usage, "tile costs " + name + " hold no attention for " +
                                        std::string(to_string(dtype)) + " x " +
                                        std::to_string(head_dim) + ": there is " +
                                        (known.empty() ? "none" : known));
}

const MoeCost& TileCosts::moe_for(DataType dtype) const {
  std::string known;
  for (const MoeCost& cost : moe) {
    if (cost.dtype == dtype) return cost;
    known += (known.empty() ? "" : ", ") + std::string(to_string(cost.dtype));
  }
  throw Error(ErrorCategory::usage, "tile costs " + name + " hold no MoE for " +
                                        std::string(to_string(dtype)) + ": there is " +
                                        (known.empty() ? "none" : known));
}

double exchange_ns(const ExchangeCost& cost, double bytes) {
  if (cost.points.empty() || bytes <= 0) return 0;
  if (cost.points.size() == 1) return cost.points[0].added_ns * bytes / cost.points[0].bytes;
  // Below the first point its time stands: launches and barriers dominate there.
  if (bytes <= cost.points.front().bytes) return cost.points.front().added_ns;
  std::size_t i = 1;
  while (i + 1 < cost.points.size() && cost.points[i].bytes < bytes) ++i;
  const ExchangePoint& a = cost.points[i - 1];
  const ExchangePoint& b = cost.points[i];
  return a.added_ns + (b.added_ns - a.added_ns) * (bytes - a.bytes) / (b.bytes - a.bytes);
}

}  // namespace xstage

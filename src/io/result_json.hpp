// Results as JSON, in the same words wherever they are given: by the tool and by the Python
// package.
#pragma once

#include <string>

#include "io/json_reader.hpp"
#include "xstage/link_profile.hpp"
#include "xstage/model.hpp"
#include "xstage/plan.hpp"

namespace xstage::io {

// "NVIDIA H200 -> NVIDIA H200, NVLink 4, 18 links"
[[nodiscard]] std::string describe_pair(const LinkProfile& profile);
// Which profile a result stands on.
[[nodiscard]] Json link_identity(const LinkProfile& profile);

[[nodiscard]] Json prediction_json(const LinkParams& link, const Burst& burst,
                                   const Prediction& prediction);
// Schema xstage.plan.
[[nodiscard]] Json plan_json(const Plan& plan, const TileCosts& costs, const LinkProfile& link);

}  // namespace xstage::io

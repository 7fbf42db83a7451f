// Who wrote a result, when, and from which command line.
#pragma once

#include <string>

#include "xstage/files.hpp"

namespace xstage::cli {

[[nodiscard]] std::string utc_now();  // "2026-11-30T12:34:56Z"

// Fills in tool version, commit and command line of this run. The date stays that of the
// measurement, if there is one.
void stamp(Provenance& provenance, const std::string& command_line);

// A profile with what the sample file says about its origin.
[[nodiscard]] LinkProfile profile_from_samples(const SampleFile& samples, Fit fit);

}  // namespace xstage::cli

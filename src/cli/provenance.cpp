#include "cli/provenance.hpp"

#include <fmt/chrono.h>

#include <chrono>
#include <filesystem>
#include <string_view>
#include <utility>

#include "xstage/version.hpp"

namespace xstage::cli {

std::string utc_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

void stamp(Provenance& provenance, const std::string& command_line) {
  const std::string_view commit = source_commit();
  provenance.tool_version = version();
  provenance.commit = commit == "unknown" ? "" : commit;
  provenance.command_line = command_line;
}

LinkProfile profile_from_samples(const SampleFile& samples, Fit fit) {
  LinkProfile profile;
  profile.name = samples.name;
  profile.link = samples.link;
  profile.source = samples.source;
  profile.destination = samples.destination;
  profile.provenance = samples.provenance;
  profile.kinds = std::move(fit.kinds);
  return profile;
}

}  // namespace xstage::cli

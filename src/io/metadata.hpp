// What sample files and link profiles both say about where their numbers come from, as one table
// of named fields, so that the two schemas use the same words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xstage/link_profile.hpp"

namespace xstage::io {

// Checked ranges of what files may say. Wide: they keep nonsense out, not unusual machines.
inline constexpr double kMaxTimeNs = 1e15;  // 11 days
inline constexpr double kMaxBytes = 1e15;
inline constexpr double kMaxRate = 1e9;  // B/ns
inline constexpr int kMaxProducers = 1'000'000;

// One field: its dotted name ("source.num_sms") and where it lives.
struct MetadataField {
  std::string_view name;
  std::variant<std::string*, int*, double*, Endpoint::Type*> value;
  double max = 0;  // of numbers
};

[[nodiscard]] inline std::vector<MetadataField> metadata_fields(std::string& name,
                                                                std::string& link, Endpoint& source,
                                                                Endpoint& destination,
                                                                Provenance& provenance) {
  std::vector<MetadataField> fields = {{"name", &name}, {"link", &link}};
  const auto add_endpoint = [&fields](bool is_source, Endpoint& end) {
    const auto pick = [is_source](std::string_view a, std::string_view b) {
      return is_source ? a : b;
    };
    fields.push_back({pick("source.type", "destination.type"), &end.type});
    fields.push_back({pick("source.name", "destination.name"), &end.name});
    fields.push_back({pick("source.uuid", "destination.uuid"), &end.uuid});
    fields.push_back({pick("source.num_sms", "destination.num_sms"), &end.num_sms, 100'000});
    fields.push_back(
        {pick("source.sm_clock_mhz", "destination.sm_clock_mhz"), &end.sm_clock_mhz, 1e6});
  };
  add_endpoint(true, source);
  add_endpoint(false, destination);
  fields.push_back({"provenance.date", &provenance.date});
  fields.push_back({"provenance.tool_version", &provenance.tool_version});
  fields.push_back({"provenance.commit", &provenance.commit});
  fields.push_back({"provenance.command_line", &provenance.command_line});
  fields.push_back({"provenance.driver", &provenance.driver});
  fields.push_back({"provenance.runtime", &provenance.runtime});
  fields.push_back({"provenance.host", &provenance.host});
  fields.push_back({"provenance.note", &provenance.note});
  return fields;
}

[[nodiscard]] std::string_view to_string(Endpoint::Type type) noexcept;
// False if the word is none of the legal ones, which kEndpointWords lists.
[[nodiscard]] bool parse_endpoint_type(std::string_view word, Endpoint::Type& type) noexcept;
inline constexpr std::string_view kEndpointWords = "gpu, host_memory, local_memory";

}  // namespace xstage::io

// A link profile: what is known of one directed pair, as data. Files are read and written by
// src/io; the schema is in docs/measuring.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "xstage/fit.hpp"
#include "xstage/model.hpp"

namespace xstage {

// Where numbers come from. Every result file carries one.
struct Provenance {
  std::string date;  // ISO 8601, UTC
  std::string tool_version;
  std::string commit;  // of xstage, "" if unknown
  std::string command_line;
  std::string driver;   // "" if unknown
  std::string runtime;  // CUDA runtime
  std::string host;     // CPU and kernel, no host name
  std::string note;     // "2x H200 NV18, measured before the probe existed"
};

struct Endpoint {
  enum class Type { gpu, host_memory, local_memory } type = Type::gpu;
  std::string name;  // "NVIDIA H200", "pinned host memory"
  std::string uuid;  // of the GPU, "" for memory
  int num_sms = 0;
  double sm_clock_mhz = 0;  // measured under load; 0 if unknown
};

// A measured quantity of the link that is not a parameter of the model: fence cost, flag latency,
// copy-engine rate, visibility by piece size. `name` is from the list in docs/measuring.md.
struct Measurement {
  std::string name;
  std::string unit;  // "ns", "B/ns", "bytes", "1"
  double value = 0;
  std::optional<Interval> interval;
};

struct LinkProfile {
  static constexpr int kSchemaVersion = 1;
  std::string name;  // "h200-nv18"
  std::string link;  // "NVLink 4, 18 links", "PCIe 5 x16"
  Endpoint source;
  Endpoint destination;
  Provenance provenance;
  std::string samples_file;  // relative to the profile, "" if none
  std::vector<KindFit> kinds;
  std::vector<Measurement> measurements;
  std::string hash;  // SHA-256 of the canonical file text; filled by load

  // Throws Error(usage) naming the kinds that the profile holds.
  [[nodiscard]] const KindFit& kind(StoreKind kind) const;
};

}  // namespace xstage

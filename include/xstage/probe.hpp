// Measure a link: what a probe may be asked, and what it gives back. No CUDA header. A build
// without CUDA has the types but not probe() itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/link_profile.hpp"
#include "xstage/samples.hpp"
#include "xstage/send.hpp"

namespace xstage {

// An empty list asks for the default sweep of that axis; a non-empty one replaces it.
struct ProbeOptions {
  std::vector<std::string> devices;  // sources: index, UUID or unique start of one; empty: all
  std::string peer;                  // index, UUID, "host" (pinned host memory) or "local" (own
                                     // memory, the control); "": accessible GPUs, else host
  std::vector<StoreKind> kinds;
  std::vector<int> producers;      // K
  std::vector<double> bytes;       // B per producer
  std::vector<double> gaps_ns;     // G aimed at in periodic bursts
  std::vector<std::string> parts;  // of probe_parts(); empty: all
  int num_rounds = 0;              // per point; 0: until the noise criterion holds
  int num_bursts = 0;              // per periodic point; 0: the default
  bool quick = false;              // canary, R, T0 and q only
  double timeout_s = 300;          // deadline of every wait
  std::uint64_t seed = 1;          // order of points, payload
  // Called between points: name of the part, share done (0..1). May be empty.
  std::function<void(std::string_view part, double done)> progress;
};

// A result that is neither a sample nor one number: load interference, pieces, pacing, the mock
// attention. Every row has one cell a column; NaN cells were not measured.
struct Table {
  std::string name;  // "load_interference", ...; columns and units in docs/measuring.md
  std::vector<std::string> columns;
  std::vector<std::vector<std::variant<std::string, double>>> rows;
};

// One directed pair. A pair that failed keeps its endpoints and says why; it holds no numbers.
struct ProbedPair {
  std::string link;  // "NVLink 4, 18 links", "PCIe 5 x16"
  Endpoint source;
  Endpoint destination;
  Provenance provenance;  // the caller adds command line and tool version
  std::vector<Sample> samples;
  std::vector<Measurement> measurements;
  std::vector<Table> tables;
  std::vector<std::string> warnings;  // "bulk, K=132, 4 KiB: noise 3.1 % after 200 rounds", ...
  std::string failure;                // "canary: 3 of 4096 words differ", "" if the pair is sound
  ErrorCategory failure_category = ErrorCategory::check_failed;
};

struct ProbeResult {
  std::vector<ProbedPair> pairs;
};

// Names of the parts, in the order in which they run; described in docs/measuring.md.
[[nodiscard]] std::vector<std::string_view> probe_parts();

// LinkParams::load_rate_loss of a store kind, from the table "load_interference": what loads of an
// SM (four in flight) lose for each byte that the same SM stores in paced 8 KiB bursts at 83 % of
// the drain rate. Absent if the table does not say.
[[nodiscard]] std::optional<double> load_rate_loss(const std::vector<Table>& tables, StoreKind kind,
                                                   int num_sms);

// LinkParams::load_bypass_bytes of a store kind, from the table "load_interference": an aligned
// burst of V bytes costs four loads in flight (V - bypass) / R of their time; median over the
// bursts in lockstep with gaps. Tensor copies take the value of bulk copies, the same engine,
// unless the table has rows of their own. Absent if the table does not say.
[[nodiscard]] std::optional<double> load_bypass_bytes(const std::vector<Table>& tables,
                                                      StoreKind kind, int num_sms,
                                                      double drain_rate);

// Runs on the GPUs of this process. Throws Error(usage) naming the legal values,
// Error(not_possible) with the reason (no driver, no such peer), Error(runtime) or Error(timeout).
[[nodiscard]] ProbeResult probe(const ProbeOptions& options);

}  // namespace xstage

// Measures attention with its output exchange: several ways in one run, replayed in turn, so that
// any two can be compared in pairs. Gives data; who decides and prints is somebody else.
//
// Every way is captured in a graph: start (all computing ranks meet, each notes its own GPU's
// time), the work, "sent" (this rank's kernels have ended), the wait for all rows that this rank
// must receive, "done". Times are from start to sent and to done, by the rank's own clock; the
// maximum over ranks. A round replays all ways forwards and then backwards, so that slow drifts
// cancel in every pair. Behind each replay the SM clock is measured for 10 us.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/attention_order.hpp"
#include "xstage/group.hpp"
#include "xstage/send.hpp"
#include "xstage/workload.hpp"

namespace xstage {

enum class ExchangeWay : std::uint8_t {
  alone,        // attention only, into local memory
  push,         // then the push kernel
  copy_engine,  // then copies by the copy engine
  chunked,      // attention in chunks of query rows on some SMs, the others push the chunk before
  fused,        // rows leave while the next tiles are computed
};

struct ExchangeCandidate {
  std::string name;
  ExchangeWay way = ExchangeWay::alone;
  Send send;                                  // fused
  TileOrder order = TileOrder::remote_first;  // fused
  bool local_owners = false;  // fused, with all owners in this GPU's memory: the same plan and
                              // flags, nothing crosses a link
  bool with_inputs = false;   // q, k and v are exchanged first, pushed by their rows' owners: a
                              // whole block
  int num_sending_sms = 0;    // fused: SMs that do nothing but send
  int num_chunks = 4;         // chunked
  int num_send_sms = 8;       // chunked: SMs that only send
};

// Where the other ranks' memory lies.
enum class ExchangePeers : std::uint8_t {
  local_ghosts,  // one rank computes, the others are memory of its GPU
  host_ghosts,   // pinned host memory
  peer_ghosts,   // memory of the next GPU
  real,          // all ranks compute, each on its GPU
};

struct ExchangeBenchOptions {
  AttentionWorkload workload;
  int num_ranks = 2;
  ExchangePeers peers = ExchangePeers::host_ghosts;
  std::vector<ExchangeCandidate> candidates;
  int max_rounds = 40;
  int min_rounds = 5;
  double seconds = 2;  // about, for the timed rounds
  std::uint64_t seed = 1;
  Group* group = nullptr;  // with ExchangePeers::real: one rank a process; null: all in this one
  std::function<void(std::string_view)> progress;
};

struct ExchangeSeries {
  std::string name;
  std::string why_not;           // not run, and why; empty if it ran
  std::string fell_back;         // why a fused candidate took the serial path; empty if it did not
  std::int64_t wrong_bytes = 0;  // of all owners' buffers, guarded by poison, against the reference
  // Two values a round: on the way forwards and on the way back.
  std::vector<double> done_ns;
  std::vector<double> sent_ns;
  std::vector<double> clock_mhz;
};

struct ExchangeMeasurement {
  std::string gpu;
  int num_sms = 0;
  int driver_version = 0;  // as CUDA numbers it: 12040
  int runtime_version = 0;
  int num_computing_ranks = 1;
  bool emulated = false;
  std::int64_t num_tiles = 0;          // of a rank
  std::int64_t sent_bytes = 0;         // by a rank, to others
  std::vector<ExchangeSeries> series;  // as the candidates
};

[[nodiscard]] constexpr std::string_view to_string(ExchangeWay way) noexcept {
  constexpr std::string_view kNames[] = {"alone", "push", "copy_engine", "chunked", "fused"};
  return kNames[static_cast<int>(way)];
}
[[nodiscard]] constexpr std::string_view to_string(ExchangePeers peers) noexcept {
  constexpr std::string_view kNames[] = {"local_ghosts", "host_ghosts", "peer_ghosts", "real"};
  return kNames[static_cast<int>(peers)];
}

// Error(not_possible) with the reason where this machine lacks the GPUs, Error(usage) for requests
// that make no sense. With a group the call is collective and all ranks get the same result.
[[nodiscard]] ExchangeMeasurement measure_exchange(const ExchangeBenchOptions& options);

}  // namespace xstage

// The seam between topology and CUDA: what must be asked of a machine. Tests put a machine of their
// own behind it.
#pragma once

#include <memory>
#include <string>

#include "xstage/topology.hpp"

namespace xstage::peers {

struct MachineFacts {
  int driver_version = 0;
  int runtime_version = 0;
  int num_gpus = 0;
  std::string missing;  // why num_gpus is 0
};

struct CanaryOutcome {
  CanaryState state = CanaryState::failed;
  std::string detail;
};

class TopologyApi {
 public:
  virtual ~TopologyApi() = default;

  virtual MachineFacts machine() = 0;
  virtual Gpu gpu(int ordinal) = 0;  // may throw Error
  // Access, atomics, link and reason of one directed pair of GPUs; may throw Error.
  virtual PeerEdge edge(const Gpu& from, const Gpu& to) = 0;
  virtual PeerEdge host_edge(const Gpu& from) = 0;
  // `to` is nullptr for pinned host memory. Returns within about the time limit; may throw Error.
  virtual CanaryOutcome canary(const Gpu& from, const Gpu* to, const CanaryOptions& options) = 0;
};

// CUDA behind the seam; in a build without CUDA a machine without GPUs that says so.
[[nodiscard]] std::unique_ptr<TopologyApi> cuda_topology();

[[nodiscard]] Topology discover(TopologyApi& api);
void run_canary(TopologyApi& api, Topology& topology, const CanaryOptions& options);

// The running machine's identity: its boot id, which containers share and reboots change.
[[nodiscard]] std::string host_id();

}  // namespace xstage::peers

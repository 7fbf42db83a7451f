// What a build without CUDA answers: no GPUs, and why.
#include "peers/memory_api.hpp"
#include "peers/topology_api.hpp"
#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

constexpr const char* kReason =
    "this build of xstage has no CUDA support; build with nvcc on the path";

class NoTopology final : public TopologyApi {
 public:
  MachineFacts machine() override {
    MachineFacts facts;
    facts.missing = kReason;
    return facts;
  }
  Gpu gpu(int) override { throw Error(ErrorCategory::not_possible, kReason); }
  PeerEdge edge(const Gpu&, const Gpu&) override {
    throw Error(ErrorCategory::not_possible, kReason);
  }
  PeerEdge host_edge(const Gpu&) override { throw Error(ErrorCategory::not_possible, kReason); }
  CanaryOutcome canary(const Gpu&, const Gpu*, const CanaryOptions&) override {
    throw Error(ErrorCategory::not_possible, kReason);
  }
};

}  // namespace

std::unique_ptr<TopologyApi> cuda_topology() {
  return std::make_unique<NoTopology>();
}

std::shared_ptr<MemoryApi> cuda_memory() {
  throw Error(ErrorCategory::not_possible, kReason);
}

}  // namespace xstage::peers

// Which GPUs this process sees, what each may do with the memory of each other one, and what that
// means: the data behind `xstage doctor`. Finding out (discover, run_canary) is apart from judging
// (judge, peer_groups, find_gpu), which is pure and needs no GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xstage {

// Stands for pinned host memory where a peer is asked for.
inline constexpr int kHostPeer = -1;

enum class LinkKind : std::uint8_t {
  unknown,
  local,   // the same GPU
  nvlink,  // direct or through switches; native atomics
  pcie,    // peer access over PCIe; far slower for SM stores than for copy engines
  host,    // pinned host memory
};

enum class CanaryState : std::uint8_t {
  not_run,
  passed,     // every byte stored over the link was read back right on the other side
  corrupt,    // the link reports success and delivers wrong bytes
  failed,     // the attempt itself returned an error
  timed_out,  // no answer in time; the pair, and only it, is given up
};

struct Gpu {
  int ordinal =
      0;  // in this process, so after CUDA_VISIBLE_DEVICES: never compare across processes
  std::string uuid;  // "GPU-2c9f..." or "MIG-...": the identity across processes
  std::string name;
  std::string pci_bus_id;  // "0000:1b:00.0"
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool mig = false;                 // a slice of a GPU: no peer access at all
  bool cooperative_launch = false;  // kernels whose CTAs wait for each other can start
  bool virtual_memory = false;      // CUDA virtual memory management
  bool posix_descriptors = false;   // memory can be given to other processes as a file descriptor
  int num_nvlinks = -1;             // active links; -1: unknown (no management library)
  double nvlink_bytes_per_ns =
      0;  // one direction, all links by their generation's rate; 0: unknown
};

// What GPU `from` can do with the memory of `to`. Directed: the two directions can differ.
struct PeerEdge {
  int from = 0;  // index into Topology::gpus
  int to = 0;    // index into Topology::gpus, or kHostPeer
  bool access = false;
  bool native_atomics = false;
  LinkKind link = LinkKind::unknown;
  std::string reason;  // why not: names the call, the pair and the link; empty if access holds
  CanaryState canary = CanaryState::not_run;
  std::string canary_detail;       // empty if passed
  std::uint64_t canary_bytes = 0;  // compared
};

struct Topology {
  std::string host_id;  // equal for all processes of one running machine, whatever their container
  int driver_version =
      0;  // the highest CUDA version that the driver supports, 13000 = 13.0; 0: no driver
  int runtime_version = 0;
  std::string missing;  // why there is no GPU; empty if there is one
  std::vector<Gpu> gpus;
  std::vector<PeerEdge> edges;  // every ordered pair of GPUs, then (gpu, kHostPeer) for every GPU

  [[nodiscard]] const PeerEdge* edge(int from, int to) const noexcept;  // nullptr if not listed
};

// Looks at this machine. Never throws for a missing driver, GPU or permission: what could not be
// found out is said in `missing` or in a reason. Allocates nothing on any GPU.
[[nodiscard]] Topology discover();

struct CanaryOptions {
  std::uint64_t bytes = 1 << 20;  // a pair, random words
  std::uint64_t seed = 1;
  std::uint64_t timeout_ns = 2'000'000'000;  // a pair
};

// Stores a random pattern with SM stores over every edge that has access, reads it back on the
// other side and fills in the canary fields. A bad pair costs only its own result.
void run_canary(Topology& topology, const CanaryOptions& options = {});

// Pure from here on.

struct Verdict {
  int exit_code = 0;    // 0 peers usable; 1 a canary found wrong bytes; 3 not possible here;
                        // 4 the system failed; 5 a pair did not answer in time
  std::string summary;  // one line
  std::vector<std::string> findings;          // every bad pair, every restriction, one line each
  std::vector<std::vector<int>> peer_groups;  // see peer_groups(); indices into Topology::gpus
  std::string next;                           // the next useful step, one line
};

[[nodiscard]] Verdict judge(const Topology& topology);

// The GPUs, parted into sets in which everybody has working access to everybody, each GPU in
// exactly one set; greedy from the lowest index, largest sets first. A group of ranks must lie in
// one of them.
[[nodiscard]] std::vector<std::vector<int>> peer_groups(const Topology& topology);

// True if GPU `from` may store into `to`: access, and no canary that went wrong.
[[nodiscard]] bool usable(const PeerEdge& edge) noexcept;

// The index of the GPU named by its ordinal ("0"), UUID or a prefix of it that is not ambiguous.
// Throws Error{usage} naming the legal ones.
[[nodiscard]] int find_gpu(const Topology& topology, std::string_view name);

// Throws Error{not_possible} with the partition unless the GPUs are one peer group.
void require_one_group(const Topology& topology, const std::vector<int>& gpus);

[[nodiscard]] std::string_view to_string(LinkKind kind) noexcept;
[[nodiscard]] std::string_view to_string(CanaryState state) noexcept;

}  // namespace xstage

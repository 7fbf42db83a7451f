// Memory that the ranks of a group can store into: one allocation per rank, mapped by all. However
// the ranks are spread (one process, several, memory that somebody else mapped, emulated), a kernel
// gets the same PeerTable and never knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "xstage/group.hpp"
#include "xstage/peer_table.hpp"

namespace xstage {

// Where a rank's bytes lie.
enum class Placement : std::uint8_t {
  device,  // memory of the rank's GPU
  host,    // pinned host memory, mapped by the GPU: a peer that every machine has
};

struct PeerOptions {
  int device = 0;  // this process's ordinal of the rank's GPU
  Placement placement = Placement::device;
  std::uint64_t deadline_ns = 300'000'000'000;  // of every wait on the device; 0: none
  void* stream = nullptr;  // the caller's cudaStream_t: creation is refused while it is captured
};

// Where the ghosts of an emulated group lie; see PeerMemory::emulate.
struct GhostOptions {
  Placement placement = Placement::host;
  int device = 0;  // with Placement::device: the peer GPU, or the rank's own GPU as the control
};

// The host's view of a dead group.
struct PeerStatus {
  bool fine = true;
  StatusRecord record;  // meaningful if a wait of this rank failed: record.outcome is not 0
  std::string text;     // who was lost, what was waited for: rank, peer, tag, expected, seen
};

// One rank's membership and memory. Move-only.
//
// Promises: all bytes are zero when create() returns, on all ranks; user bytes start at a multiple
// of 4096; bases are never null. At most 4 MiB per rank are used beyond what was asked for. The
// order in which members are closed or destroyed does not matter; memory goes when the last rank
// that maps it has closed. Creation is all or nothing: where it fails, it fails with the same Error
// on every rank and leaves nothing behind. Creation and closing must not happen while a stream is
// being captured; creation then throws Error{usage} before it touches anything.
//
// After a failed wait the group is dead: kernels run to their end with garbage, check() throws, and
// the only way on is to create a new one.
class PeerMemory {
 public:
  // Collective over the group, one rank per process. Bytes may differ between ranks only by error:
  // the largest and smallest must agree, else Error{usage}. Through CUDA virtual memory and file
  // descriptors, or for Placement::host through shared memory. No multicast object is ever made.
  static PeerMemory create(Group& group, std::size_t bytes, const PeerOptions& options = {});

  // All ranks in this process, rank i on devices[i]. Several ranks may share a GPU (co-located
  // ranks). options.device is ignored.
  static std::vector<PeerMemory> create_local(std::span<const int> devices, std::size_t bytes,
                                              const PeerOptions& options = {});

  // Memory that somebody else mapped, `bytes` at each base, torch symmetric memory for example. The
  // first kControlBytes of each become the control block, so bytes() is that much smaller. Not
  // collective: each rank calls it, and must make sure that all have returned (a barrier of its
  // own) before the first kernel. Closing leaves the memory alone.
  static PeerMemory adopt(std::span<void* const> bases, int rank, std::size_t bytes,
                          const PeerOptions& options = {});

  // Turns a real member of n ranks into one of num_ranks > n: ranks n.. are ghosts. Every computing
  // rank has its own image of every ghost, at its own address, filled with poison(ghost); what it
  // sends to a ghost really travels to where the image lies. Ghosts have already arrived at every
  // barrier, so waits count computing ranks only. Shows egress and ingress volume; cannot show
  // fan-in, skew among num_ranks, or barriers among them: results must say `emulated`.
  static PeerMemory emulate(PeerMemory real, int num_ranks, const GhostOptions& ghosts = {});

  PeerMemory(PeerMemory&&) noexcept;
  PeerMemory& operator=(PeerMemory&&) noexcept;
  ~PeerMemory();  // closes

  [[nodiscard]] PeerTable table() const noexcept;
  [[nodiscard]] WaitContext wait_context() const noexcept;
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int num_ranks() const noexcept;
  [[nodiscard]] int num_computing_ranks() const noexcept;  // smaller if emulated
  [[nodiscard]] bool emulated() const noexcept;
  [[nodiscard]] int device() const noexcept;
  // How many ranks of the group share this rank's GPU, and which one of them this is. Each should
  // launch at most num_sms / count CTAs.
  [[nodiscard]] int num_co_located() const noexcept;
  [[nodiscard]] int co_located_idx() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;  // for the user, per rank
  [[nodiscard]] std::size_t overhead_bytes()
      const noexcept;  // device memory beyond that, this rank

  // Copies between host memory and any rank's bytes as this rank sees them. Synchronous; not while
  // kernels use the same bytes. Throws Error{usage} outside the bytes.
  void write(int rank, std::size_t offset, const void* source, std::size_t bytes);
  void read(int rank, std::size_t offset, void* destination, std::size_t bytes) const;

  // The state of the group, at any time, also while kernels run. check() throws Error{timeout} with
  // status().text unless all is well.
  [[nodiscard]] PeerStatus status() const;
  void check() const;

  // Ends all waits of this rank's kernels. In a Group, use Group::abort to reach all ranks.
  void abort() noexcept;

  void close() noexcept;  // idempotent

  struct Impl;

 private:
  explicit PeerMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The 32-bit word that fills the images of a ghost, different for each.
[[nodiscard]] constexpr std::uint32_t poison(int ghost_rank) noexcept {
  return 0xfdb70000u | static_cast<std::uint32_t>(ghost_rank);
}

// One line: who waited for whom, why, what was expected and seen. Empty if nothing failed.
[[nodiscard]] std::string describe(const StatusRecord& record);

// The largest number of CTAs (one per SM) that co-located rank `idx` of `count` may launch.
[[nodiscard]] constexpr int sm_share(int num_sms, int count, int idx) noexcept {
  return num_sms / count + (idx < num_sms % count ? 1 : 0);
}

}  // namespace xstage

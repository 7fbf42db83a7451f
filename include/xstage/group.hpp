// The processes of one job on one machine: who they are, how they meet, and how they notice that
// one of them is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/topology.hpp"

namespace xstage {

// What a launcher said about this process.
struct LaunchInfo {
  int rank = 0;
  int num_ranks = 1;
  int local_rank = 0;  // among the ranks of this machine
  int num_local_ranks = 1;
  std::string launcher = "none";  // "torchrun", "mpirun", "srun" or "none": one rank
  std::string job;  // equal on all ranks of a job, different between jobs of one machine
};

// Looks a variable up; nullptr if it is not set.
using GetVariable = std::function<const char*(const char* name)>;

// Reads the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), mpirun
// (OMPI_COMM_WORLD_*, PMI_*) or srun (SLURM_PROCID, SLURM_NTASKS, ...), the first set that is
// there. None of them: one rank. Throws Error{usage} naming the variable that is missing or wrong,
// and Error{not_possible} if the ranks are spread over several machines.
[[nodiscard]] LaunchInfo read_launch(const GetVariable& variable);
[[nodiscard]] LaunchInfo read_launch();  // of this process's environment

struct GroupOptions {
  std::uint64_t timeout_ns = 60'000'000'000;  // of the rendezvous and of each collective call
  std::string name;  // tells apart several groups that one job holds at the same time
};

// One process's membership. The calls marked collective must be made by all ranks in the same
// order; they throw the same Error on every rank that is still alive. Not for use by two threads
// at once, except lost() and abort(). Do not fork without exec while a Group lives: the child would
// hold the sockets open, and the loss of its parent would show at deadlines only.
class Group {
 public:
  // Collective. Meets the other ranks over a Unix socket in the abstract namespace, so nothing is
  // left on disk; only processes of the same user are let in. Returns when all have come. Throws
  // Error{timeout} naming the ranks that did not, Error{usage} if two claim one rank.
  static Group join(const LaunchInfo& launch, const GroupOptions& options = {});

  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();  // leaves

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int num_ranks() const noexcept;
  [[nodiscard]] const LaunchInfo& launch() const noexcept;

  // Collective. Everybody's contribution (up to 60 KiB) in the order of ranks.
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view mine);
  void barrier();  // collective

  // Empty while all ranks live, else who was lost, as soon as its socket says so (well below a
  // second). A stopped process is slow, not lost. What ran on the lost group's memory is stopped.
  [[nodiscard]] std::string lost() const;

  // Tells every rank to stop waiting; their lost() becomes the reason.
  void abort(std::string_view reason) noexcept;

  // Not collective, idempotent. Others are told, so that they do not take it for a loss. When rank
  // 0 has left, the others no longer hear of losses and rely on the deadlines of waits.
  void leave() noexcept;

  struct Impl;
  // For PeerMemory, which may outlive the Group. Throws Error{usage} after leave().
  [[nodiscard]] std::shared_ptr<Impl> impl() const;

 private:
  explicit Group(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
  LaunchInfo launch_;
};

// Collective. What all ranks together see, the same on every rank: GPUs joined by UUID and numbered
// by PCI address, each directed pair with the worst that any rank found. Pairs that no rank sees as
// a whole (each process has its own CUDA_VISIBLE_DEVICES) are tried out with peer memory of the
// group, each rank on its GPU number local_rank modulo those that it sees.
[[nodiscard]] Topology gather_topology(Group& group, const Topology& mine);

}  // namespace xstage

// The inside of a Group, for PeerMemory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "peers/rendezvous.hpp"
#include "peers/socket.hpp"
#include "peers/watchdog.hpp"
#include "xstage/group.hpp"

namespace xstage {

struct Group::Impl {
  struct Contribution {
    std::string payload;
    peers::UniqueFd fd;  // the receiver's own copy
  };

  Impl(const LaunchInfo& launch, const GroupOptions& options);

  // Collective: everybody's payload and descriptor, in the order of ranks. `what` is for messages.
  [[nodiscard]] std::vector<Contribution> exchange(std::string_view payload, peers::UniqueFd fd,
                                                   std::string_view what);

  LaunchInfo launch;
  GroupOptions options;
  std::vector<peers::Socket> control;
  std::vector<pid_t> pids;
  peers::Watchdog watchdog;

 private:
  Impl(const LaunchInfo& launch, const GroupOptions& options, peers::Links links);
  [[nodiscard]] std::vector<Contribution> exchange_at_hub(std::vector<Contribution> all,
                                                          std::string_view what);
  [[nodiscard]] std::vector<Contribution> exchange_at_rank(std::vector<Contribution> all,
                                                           std::string_view what);
  void collect(std::vector<Contribution>& all, peers::Deadline deadline, std::string_view what);
  void distribute(const std::vector<Contribution>& all, peers::Deadline deadline) const;
  [[nodiscard]] Error loss(std::size_t rank, std::string_view what) const;

  std::uint32_t sequence_ = 0;
};

}  // namespace xstage

// How the processes of a job find each other: rank 0 listens at a name made from user and job, each
// other rank calls twice, once for collective calls and once to be watched.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "peers/socket.hpp"
#include "xstage/error.hpp"
#include "xstage/group.hpp"

namespace xstage::peers {

// What a rendezvous leaves: on rank 0 one pair of sockets per other rank (index = rank, own ones
// empty), elsewhere index 0 alone.
struct Links {
  std::vector<Socket> control;
  std::vector<Socket> life;
  std::vector<pid_t> pids;  // by rank; 0: not known (another process namespace)
};

// The name at which rank 0 listens, in the abstract namespace.
[[nodiscard]] std::string socket_name(const LaunchInfo& launch, const std::string& group_name,
                                      uid_t user);

// Throws the same Error on every rank that takes part.
[[nodiscard]] Links rendezvous(const LaunchInfo& launch, const GroupOptions& options);

// An error as the payload of a `fail` message, and back. Nonsense becomes Error{runtime}.
[[nodiscard]] std::string pack_error(const Error& error);
[[nodiscard]] Error unpack_error(const std::string& payload);

}  // namespace xstage::peers

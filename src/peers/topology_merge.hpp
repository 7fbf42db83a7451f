// Topologies of several processes become one. Pure.
#pragma once

#include <string>
#include <vector>

#include "xstage/topology.hpp"

namespace xstage::peers {

[[nodiscard]] std::string pack(const Topology& topology);
[[nodiscard]] Topology unpack_topology(const std::string& text);  // throws Error{runtime}
[[nodiscard]] Topology merge(const std::vector<Topology>& topologies);

// True for a pair that no process sees as a whole.
[[nodiscard]] bool is_unseen(const PeerEdge& edge);

}  // namespace xstage::peers

// Stand-ins for peers, so that one process can run and measure an exchange among many ranks: the
// ghosts of PeerMemory::emulate(), by a word of where they lie.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "xstage/peers.hpp"

namespace xstage::attention {

enum class GhostPlace : std::uint8_t {
  local,  // the rank's own GPU: what an exchange costs beside its link
  host,   // pinned host memory: a slow link that every machine has
  peer,   // another GPU
};

[[nodiscard]] std::string_view to_string(GhostPlace place) noexcept;
// Throws Error(usage) naming the legal words.
[[nodiscard]] GhostPlace parse_ghost_place(std::string_view word);

// Empty if `device` can have ghosts there, else why not. `peer_device`: -1 if there is no other
// GPU.
[[nodiscard]] std::string why_no_ghosts(GhostPlace place, int device, int peer_device);

// Rank 0 of `num_ranks` on `device`; all others are ghosts.
[[nodiscard]] PeerMemory with_ghosts(GhostPlace place, int device, int peer_device, int num_ranks,
                                     std::size_t bytes, const PeerOptions& options = {});

}  // namespace xstage::attention

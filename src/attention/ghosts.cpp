#include "attention/ghosts.hpp"

#include <cuda_runtime.h>

#include <span>
#include <utility>

#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

constexpr GhostPlace kPlaces[] = {GhostPlace::local, GhostPlace::host, GhostPlace::peer};

}  // namespace

std::string_view to_string(GhostPlace place) noexcept {
  constexpr std::string_view kNames[] = {"local", "host", "peer"};
  return kNames[static_cast<int>(place)];
}

GhostPlace parse_ghost_place(std::string_view word) {
  for (const GhostPlace place : kPlaces) {
    if (word == to_string(place)) return place;
  }
  throw Error(ErrorCategory::usage,
              "'" + std::string(word) + "': legal places of ghosts are local, host, peer");
}

std::string why_no_ghosts(GhostPlace place, int device, int peer_device) {
  if (place != GhostPlace::peer) return "";
  if (peer_device < 0) return "there is no other GPU";
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, device, peer_device) != cudaSuccess || can == 0) {
    (void)cudaGetLastError();
    return "GPU " + std::to_string(device) + " cannot reach GPU " + std::to_string(peer_device);
  }
  return "";
}

PeerMemory with_ghosts(GhostPlace place, int device, int peer_device, int num_ranks,
                       std::size_t bytes, const PeerOptions& options) {
  if (const auto why = why_no_ghosts(place, device, peer_device); !why.empty()) {
    throw Error(ErrorCategory::not_possible,
                "ghosts in " + std::string(to_string(place)) + " memory: " + why);
  }
  const int devices[] = {device};
  auto members = PeerMemory::create_local(devices, bytes, options);
  GhostOptions ghosts;
  ghosts.placement = place == GhostPlace::host ? Placement::host : Placement::device;
  ghosts.device = place == GhostPlace::peer ? peer_device : device;
  return PeerMemory::emulate(std::move(members.front()), num_ranks, ghosts);
}

}  // namespace xstage::attention

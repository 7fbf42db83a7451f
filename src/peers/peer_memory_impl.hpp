// The inside of a PeerMemory, shared by its ways of being made.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "peers/group_impl.hpp"
#include "peers/memory_api.hpp"
#include "xstage/peers.hpp"

namespace xstage {

struct PeerMemory::Impl {
  explicit Impl(std::shared_ptr<peers::MemoryApi> memory_api) : api(std::move(memory_api)) {}
  ~Impl() { close(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static PeerMemory wrap(std::unique_ptr<Impl> impl) { return PeerMemory(std::move(impl)); }

  // Zeroes this rank's block and writes its control block; `table` must be complete.
  void initialise_control(std::size_t zero_bytes);
  void watch(std::shared_ptr<Group::Impl> joined);
  void close() noexcept;

  std::shared_ptr<peers::MemoryApi> api;
  PeerOptions options;
  PeerTable table;
  int num_computing = 0;
  int num_co_located = 1;
  int co_located_idx = 0;
  std::size_t user_bytes = 0;
  std::size_t overhead = 0;
  std::vector<std::shared_ptr<peers::Block>> blocks;  // everything mapped; shared within a process
  std::unique_ptr<peers::Page> page;
  std::shared_ptr<Group::Impl> group;
  int sink = -1;
  bool closed = false;
};

namespace peers {

// Throws Error{usage} unless a rank may have that many bytes.
void require_legal_size(std::size_t bytes);
void require_not_capturing(MemoryApi& api, const PeerOptions& options);
void require_legal_ranks(std::size_t num_ranks);

// How many of `uuids` equal the one at `rank`, and how many of these come before it.
struct CoLocation {
  int count = 0;
  int idx = 0;
};
[[nodiscard]] CoLocation co_location(const std::vector<std::string>& uuids, std::size_t rank);

}  // namespace peers
}  // namespace xstage

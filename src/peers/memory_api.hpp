// The seam between peer memory and CUDA: blocks of memory that can be mapped, exported and
// imported. Tests put shared memory of the host behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peers/socket.hpp"  // UniqueFd
#include "xstage/peer_table.hpp"
#include "xstage/peers.hpp"

namespace xstage::peers {

struct BlockRequest {
  std::size_t bytes = 0;
  Placement placement = Placement::device;
  int device = 0;                // whose memory, or who pins it
  std::vector<int> accessed_by;  // devices of this process that must see it
  bool shareable = false;        // export_fd() will be called
};

// A mapped block; its destructor unmaps it and drops this process's reference.
class Block {
 public:
  virtual ~Block() = default;
  [[nodiscard]] virtual std::byte* address() const = 0;  // as the devices see it
  [[nodiscard]] virtual std::size_t bytes() const = 0;   // rounded up
  [[nodiscard]] virtual UniqueFd export_fd() = 0;        // throws Error
};

// The page through which a rank and its host talk.
class Page {
 public:
  virtual ~Page() = default;
  [[nodiscard]] virtual HostPage* host() const = 0;
  [[nodiscard]] virtual HostPage* device() const = 0;  // as the rank's GPU sees it
};

class MemoryApi {
 public:
  virtual ~MemoryApi() = default;

  // Identity of a device across processes.
  [[nodiscard]] virtual std::string uuid(int device) = 0;
  // Throws Error{not_possible} with the reason unless the device can do what the request needs.
  virtual void require(const BlockRequest& request) = 0;
  // True if the stream is being captured, or another one that forbids allocation.
  [[nodiscard]] virtual bool capturing(void* stream) = 0;

  [[nodiscard]] virtual std::unique_ptr<Block> create(const BlockRequest& request) = 0;
  [[nodiscard]] virtual std::unique_ptr<Block> import(UniqueFd fd, const BlockRequest& request) = 0;
  [[nodiscard]] virtual std::unique_ptr<Page> create_page(int device) = 0;

  // Synchronous; addresses as `device` sees them.
  virtual void write(int device, std::byte* to, const void* from, std::size_t bytes) = 0;
  virtual void read(int device, void* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void fill(int device, std::byte* to, std::uint32_t word, std::size_t bytes) = 0;
};

// CUDA behind the seam; in a build without CUDA one that refuses everything with the reason.
[[nodiscard]] std::shared_ptr<MemoryApi> cuda_memory();

// As the members of PeerMemory, over any seam.
[[nodiscard]] PeerMemory create(std::shared_ptr<MemoryApi> api, Group& group, std::size_t bytes,
                                const PeerOptions& options);
[[nodiscard]] std::vector<PeerMemory> create_local(std::shared_ptr<MemoryApi> api,
                                                   std::span<const int> devices, std::size_t bytes,
                                                   const PeerOptions& options);
[[nodiscard]] PeerMemory adopt(std::shared_ptr<MemoryApi> api, std::span<void* const> bases,
                               int rank, std::size_t bytes, const PeerOptions& options);

// As the function of xstage/group.hpp, over any seam.
[[nodiscard]] Topology gather_topology(const std::function<std::shared_ptr<MemoryApi>()>& api,
                                       Group& group, const Topology& mine);

}  // namespace xstage::peers

#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>
#include <utility>

#include "peers/peer_memory_impl.hpp"
#include "xstage/error.hpp"
#include "xstage/peers.hpp"

namespace xstage {
namespace {

// The epoch at which ghosts have arrived: ahead of any that a computing rank reaches in 2^31
// barriers.
constexpr std::uint32_t kGhostEpoch = 0x7fffffffu;
constexpr std::size_t kGhostAlignment = 64 * 1024;

std::string tag_name(std::uint32_t tag) {
  switch (static_cast<WaitTag>(tag)) {
    case WaitTag::none:
      return "none";
    case WaitTag::rank_barrier:
      return "rank_barrier";
    case WaitTag::grid_barrier:
      return "grid_barrier";
    case WaitTag::flag:
      return "flag";
    case WaitTag::first_operator_tag:
      break;
  }
  return "operator's";
}

std::byte* bytes_at(void* base) {
  return static_cast<std::byte*>(base);
}

std::byte* control_address(const PeerTable& table, int rank) {
  return bytes_at(table.bases[rank]) - kControlBytes;
}

void require_inside(const PeerMemory::Impl& impl, int rank, std::size_t offset, std::size_t bytes) {
  if (impl.closed) throw Error(ErrorCategory::usage, "this peer memory has been closed");
  if (rank < 0 || rank >= impl.table.num_ranks) {
    throw Error(ErrorCategory::usage, "rank " + std::to_string(rank) + ": legal 0.." +
                                          std::to_string(impl.table.num_ranks - 1));
  }
  if (offset > impl.user_bytes || bytes > impl.user_bytes - offset) {
    throw Error(ErrorCategory::usage, std::to_string(bytes) + " bytes at " +
                                          std::to_string(offset) + ": a rank has " +
                                          std::to_string(impl.user_bytes));
  }
}

std::uint32_t load(const std::uint32_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

}  // namespace

namespace peers {

void require_legal_size(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 46;
  if (bytes <= kMost) return;
  throw Error(ErrorCategory::usage,
              std::to_string(bytes) + " bytes per rank: legal 0.." + std::to_string(kMost));
}

void require_legal_ranks(std::size_t num_ranks) {
  if (num_ranks >= 1 && num_ranks <= static_cast<std::size_t>(kMaxRanks)) return;
  throw Error(ErrorCategory::usage,
              std::to_string(num_ranks) + " ranks: legal 1.." + std::to_string(kMaxRanks));
}

void require_not_capturing(MemoryApi& api, const PeerOptions& options) {
  if (!api.capturing(options.stream)) return;
  throw Error(ErrorCategory::usage,
              "a stream is being captured: create peer memory before the capture begins");
}

CoLocation co_location(const std::vector<std::string>& uuids, std::size_t rank) {
  CoLocation result;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    if (uuids[i] != uuids[rank]) continue;
    ++result.count;
    result.idx += i < rank ? 1 : 0;
  }
  return result;
}

std::vector<PeerMemory> create_local(std::shared_ptr<MemoryApi> api, std::span<const int> devices,
                                     std::size_t bytes, const PeerOptions& options) {
  require_legal_ranks(devices.size());
  require_legal_size(bytes);
  require_not_capturing(*api, options);
  std::vector<int> distinct(devices.begin(), devices.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());

  BlockRequest request;
  request.bytes = kControlBytes + bytes;
  request.placement = options.placement;
  request.accessed_by = distinct;
  std::vector<std::string> uuids;
  for (const int device : devices) {
    request.device = device;
    api->require(request);
    uuids.push_back(api->uuid(device));
  }
  std::vector<std::shared_ptr<Block>> blocks;
  PeerTable table;
  table.num_ranks = static_cast<std::int32_t>(devices.size());
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    request.device = devices[rank];
    blocks.push_back(api->create(request));
    table.bases[rank] = blocks.back()->address() + kControlBytes;
  }
  std::vector<PeerMemory> members;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    auto impl = std::make_unique<PeerMemory::Impl>(api);
    impl->options = options;
    impl->options.device = devices[rank];
    impl->table = table;
    impl->table.rank = static_cast<std::int32_t>(rank);
    impl->num_computing = table.num_ranks;
    const CoLocation place = co_location(uuids, rank);
    impl->num_co_located = place.count;
    impl->co_located_idx = place.idx;
    impl->user_bytes = bytes;
    impl->overhead = blocks[rank]->bytes() - bytes;
    impl->blocks = blocks;
    impl->page = api->create_page(devices[rank]);
    impl->initialise_control(request.bytes);
    members.push_back(PeerMemory::Impl::wrap(std::move(impl)));
  }
  return members;
}

PeerMemory adopt(std::shared_ptr<MemoryApi> api, std::span<void* const> bases, int rank,
                 std::size_t bytes, const PeerOptions& options) {
  require_legal_ranks(bases.size());
  if (rank < 0 || static_cast<std::size_t>(rank) >= bases.size()) {
    throw Error(ErrorCategory::usage,
                "rank " + std::to_string(rank) + ": legal 0.." + std::to_string(bases.size() - 1));
  }
  if (bytes < kControlBytes) {
    throw Error(ErrorCategory::usage, std::to_string(bytes) + " bytes per rank: at least " +
                                          std::to_string(kControlBytes) +
                                          " are needed for the control block");
  }
  require_legal_size(bytes);
  require_not_capturing(*api, options);
  auto impl = std::make_unique<PeerMemory::Impl>(api);
  for (std::size_t i = 0; i < bases.size(); ++i) {
    if (bases[i] == nullptr) {
      throw Error(ErrorCategory::not_possible, "rank " + std::to_string(i) +
                                                   " has no mapped pointer: its memory cannot be "
                                                   "reached by loads and stores from here");
    }
    if (reinterpret_cast<std::uintptr_t>(bases[i]) % 128 != 0) {
      throw Error(ErrorCategory::usage,
                  "the base of rank " + std::to_string(i) + " is not a multiple of 128");
    }
    if (std::find(bases.begin(), bases.begin() + static_cast<std::ptrdiff_t>(i), bases[i]) !=
        bases.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw Error(ErrorCategory::usage,
                  "rank " + std::to_string(i) + " has the same base as an earlier rank");
    }
    impl->table.bases[i] = static_cast<std::byte*>(bases[i]) + kControlBytes;
  }
  impl->options = options;
  impl->table.rank = rank;
  impl->table.num_ranks = static_cast<std::int32_t>(bases.size());
  impl->num_computing = impl->table.num_ranks;
  impl->user_bytes = bytes - kControlBytes;
  impl->page = api->create_page(options.device);
  impl->initialise_control(kControlBytes);
  return PeerMemory::Impl::wrap(std::move(impl));
}

}  // namespace peers

void PeerMemory::Impl::initialise_control(std::size_t zero_bytes) {
  std::byte* address = control_address(table, table.rank);
  api->fill(options.device, address, 0, zero_bytes);
  RankControl control{};
  control.rank = table.rank;
  control.num_ranks = table.num_ranks;
  control.host_page = page->device();
  for (int rank = 0; rank < table.num_ranks; ++rank) control.peers[rank] = control_of(table, rank);
  api->write(options.device, address, &control, sizeof control);
}

void PeerMemory::Impl::watch(std::shared_ptr<Group::Impl> joined) {
  group = std::move(joined);
  sink = group->watchdog.add([host_page = page->host()](const std::string&) {
    __atomic_store_n(&host_page->abort, 1u, __ATOMIC_RELEASE);
  });
}

void PeerMemory::Impl::close() noexcept {
  if (closed) return;
  closed = true;
  if (group != nullptr) group->watchdog.remove(sink);
  group.reset();
  blocks.clear();  // first: it waits for kernels, which may still look at the page
  page.reset();
  std::fill(std::begin(table.bases), std::end(table.bases), nullptr);
}

std::vector<PeerMemory> PeerMemory::create_local(std::span<const int> devices, std::size_t bytes,
                                                 const PeerOptions& options) {
  return peers::create_local(peers::cuda_memory(), devices, bytes, options);
}

PeerMemory PeerMemory::create(Group& group, std::size_t bytes, const PeerOptions& options) {
  return peers::create(peers::cuda_memory(), group, bytes, options);
}

PeerMemory PeerMemory::adopt(std::span<void* const> bases, int rank, std::size_t bytes,
                             const PeerOptions& options) {
  return peers::adopt(peers::cuda_memory(), bases, rank, bytes, options);
}

PeerMemory PeerMemory::emulate(PeerMemory real, int num_ranks, const GhostOptions& ghosts) {
  if (real.impl_ == nullptr || real.impl_->closed) {
    throw Error(ErrorCategory::usage, "this peer memory has been closed");
  }
  Impl& impl = *real.impl_;
  const int first = impl.table.num_ranks;
  if (num_ranks < first || num_ranks > kMaxRanks) {
    throw Error(ErrorCategory::usage, "emulating " + std::to_string(num_ranks) + " ranks: legal " +
                                          std::to_string(first) + ".." + std::to_string(kMaxRanks));
  }
  if (num_ranks == first) return real;
  peers::require_not_capturing(*impl.api, impl.options);
  const std::size_t stride =
      (kControlBytes + impl.user_bytes + kGhostAlignment - 1) / kGhostAlignment * kGhostAlignment;
  peers::BlockRequest request;
  request.bytes = stride * static_cast<std::size_t>(num_ranks - first);
  request.placement = ghosts.placement;
  request.device = ghosts.placement == Placement::device ? ghosts.device : impl.options.device;
  request.accessed_by = {impl.options.device};
  impl.api->require(request);
  std::shared_ptr<peers::Block> block = impl.api->create(request);
  const std::size_t words = impl.user_bytes / 4 * 4;
  for (int ghost = first; ghost < num_ranks; ++ghost) {
    std::byte* image = block->address() + stride * static_cast<std::size_t>(ghost - first);
    impl.api->fill(impl.options.device, image, 0, kControlBytes);
    impl.api->fill(impl.options.device, image + kControlBytes, poison(ghost), words);
    impl.table.bases[ghost] = image + kControlBytes;
  }
  impl.blocks.push_back(std::move(block));
  impl.table.num_ranks = num_ranks;

  // Only what is this rank's own is written: real peers may already have arrived at a barrier.
  std::byte* mine = control_address(impl.table, impl.table.rank);
  const auto put = [&](std::size_t offset, const auto& value) {
    impl.api->write(impl.options.device, mine + offset, &value, sizeof value);
  };
  for (int ghost = first; ghost < num_ranks; ++ghost) {
    const auto idx = static_cast<std::size_t>(ghost);
    put(offsetof(RankControl, peers) + idx * sizeof(RankControl*), control_of(impl.table, ghost));
    put(offsetof(RankControl, arrivals) + idx * sizeof(std::uint32_t), kGhostEpoch);
  }
  put(offsetof(RankControl, num_ranks), impl.table.num_ranks);
  return real;
}

PeerMemory::PeerMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerMemory::PeerMemory(PeerMemory&&) noexcept = default;
PeerMemory& PeerMemory::operator=(PeerMemory&&) noexcept = default;
PeerMemory::~PeerMemory() = default;

PeerTable PeerMemory::table() const noexcept {
  return impl_ ? impl_->table : PeerTable{};
}

WaitContext PeerMemory::wait_context() const noexcept {
  if (impl_ == nullptr || impl_->closed) return {};
  RankControl* control = control_of(impl_->table, impl_->table.rank);
  return {&control->abort, impl_->options.deadline_ns, control};
}

int PeerMemory::rank() const noexcept {
  return impl_ ? impl_->table.rank : 0;
}
int PeerMemory::num_ranks() const noexcept {
  return impl_ ? impl_->table.num_ranks : 0;
}
int PeerMemory::num_computing_ranks() const noexcept {
  return impl_ ? impl_->num_computing : 0;
}
bool PeerMemory::emulated() const noexcept {
  return num_computing_ranks() < num_ranks();
}
int PeerMemory::device() const noexcept {
  return impl_ ? impl_->options.device : 0;
}
int PeerMemory::num_co_located() const noexcept {
  return impl_ ? impl_->num_co_located : 1;
}
int PeerMemory::co_located_idx() const noexcept {
  return impl_ ? impl_->co_located_idx : 0;
}
std::size_t PeerMemory::bytes() const noexcept {
  return impl_ ? impl_->user_bytes : 0;
}
std::size_t PeerMemory::overhead_bytes() const noexcept {
  return impl_ ? impl_->overhead : 0;
}

void PeerMemory::write(int rank, std::size_t offset, const void* source, std::size_t bytes) {
  if (impl_ == nullptr) throw Error(ErrorCategory::usage, "this peer memory has been moved from");
  require_inside(*impl_, rank, offset, bytes);
  impl_->api->write(impl_->options.device, bytes_at(impl_->table.bases[rank]) + offset, source,
                    bytes);
}

void PeerMemory::read(int rank, std::size_t offset, void* destination, std::size_t bytes) const {
  if (impl_ == nullptr) throw Error(ErrorCategory::usage, "this peer memory has been moved from");
  require_inside(*impl_, rank, offset, bytes);
  impl_->api->read(impl_->options.device, destination, bytes_at(impl_->table.bases[rank]) + offset,
                   bytes);
}

PeerStatus PeerMemory::status() const {
  PeerStatus status;
  if (impl_ == nullptr || impl_->closed) return status;
  const HostPage& page = *impl_->page->host();
  const bool peer_failed = load(page.peer_wait.outcome) != 0;
  const bool local_failed = load(page.local_wait.outcome) != 0;
  const bool failed = peer_failed || local_failed;
  const std::string lost = impl_->group == nullptr ? "" : impl_->group->watchdog.lost();
  const bool stopped = load(page.abort) != 0;
  status.fine = !failed && lost.empty() && !stopped;
  if (failed) status.record = peer_failed ? page.peer_wait : page.local_wait;
  const auto deadline = static_cast<std::uint32_t>(WaitOutcome::deadline);
  if (local_failed && page.local_wait.outcome == deadline) status.record.outcome = deadline;
  status.text = lost;
  if (failed) status.text += (lost.empty() ? "" : "; ") + describe(status.record);
  if (status.text.empty() && stopped) status.text = "waits were stopped by the host";
  return status;
}

void PeerMemory::check() const {
  const PeerStatus now = status();
  if (!now.fine) throw Error(ErrorCategory::timeout, now.text);
}

void PeerMemory::abort() noexcept {
  if (impl_ == nullptr || impl_->closed) return;
  __atomic_store_n(&impl_->page->host()->abort, 1u, __ATOMIC_RELEASE);
}

void PeerMemory::close() noexcept {
  if (impl_ != nullptr) impl_->close();
}

std::string describe(const StatusRecord& record) {
  if (record.outcome == 0) return {};
  std::ostringstream text;
  text << "rank " << record.rank << " waited " << static_cast<double>(record.waited_ns) / 1e9
       << " s for ";
  if (record.peer < 0) {
    text << "its own other CTAs";
  } else {
    text << "rank " << record.peer;
  }
  text << ", tag " << tag_name(record.tag) << " (" << record.tag << "): expected "
       << record.expected << ", saw " << record.seen
       << (record.outcome == static_cast<std::uint32_t>(WaitOutcome::deadline)
               ? "; its deadline passed"
               : "; stopped because the group is dead");
  return text.str();
}

}  // namespace xstage

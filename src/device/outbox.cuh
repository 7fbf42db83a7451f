// The outbox: how a kernel sends finished tiles to a peer. A ring of slots in shared memory, owned
// by ONE role (a spare producer warp, or the consumers themselves).
//
//   acquire()       the next slot's source has been read: it may be filled again
//   post(src, dst)  the slot is full; includes the fence towards the copy engine
//   step()          the main loop has advanced by one step (the pacer counts steps)
//   pump()          sends at most one chunk, if the pacer allows; nearly free when empty
//   drain()         sends the rest, unpaced
//   publish(flag)   all bytes sent so far by this role are visible before the flag is
//
// Guarantees: chunks leave in the order of post(); a slot is never handed out while the copy engine
// still reads it; publish() covers every chunk sent before it. All threads of the owning role make
// all calls, with the same arguments.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/role.cuh"
#include "device/store.cuh"
#include "xstage/send.hpp"

namespace xstage::device {

template <class Store, int kNumSlots = 2>
class Outbox {
 public:
  using Destination = typename Store::Destination;

  // Lives in shared memory; touched by the owning role alone.
  struct Parcel {
    Destination destination;
    const char* source;
    std::uint32_t bytes;
  };
  using Storage = Parcel[kNumSlots];

  __device__ Outbox(const Role& role, const Send& send, Storage& parcels)
      : role_(role), send_(send), pacer_(send), parcels_(parcels) {}

  // The slot that the next acquire() and post() speak of.
  __device__ std::uint32_t next_slot() const { return num_posted_ % kNumSlots; }
  __device__ bool is_empty() const { return num_sent_ == num_posted_; }
  __device__ std::uint32_t num_chunks_sent() const { return num_chunks_; }

  // Until the next slot may be filled. What is left of the slot's earlier parcel is sent first.
  __device__ void acquire() {
    if (num_posted_ < kNumSlots) return;
    while (num_posted_ - num_sent_ >= kNumSlots) send_chunk(false);
    if constexpr (Store::kUsesCopyEngine) wait_read_of(num_posted_ - kNumSlots);
    role_.sync();
  }

  // `source` is complete in shared memory: its writers belong to this role, or have executed
  // fence_async_shared() before the barrier through which they handed the slot over.
  __device__ void post(const void* source, std::uint32_t bytes, const Destination& destination) {
    if constexpr (Store::kUsesCopyEngine) fence_async_shared();
    if (role_.is_leader()) {
      parcels_[next_slot()] = {destination, static_cast<const char*>(source), bytes};
    }
    role_.sync();
    ++num_posted_;
  }

  __device__ void step() { pacer_.step(); }

  // True if a chunk was sent.
  __device__ bool pump() {
    if (is_empty() || !pacer_.take()) return false;
    send_chunk(true);
    return true;
  }

  __device__ void drain() {
    while (!is_empty()) send_chunk(false);
  }

  // Until the source of everything sent has been read; until the copy engine calls it complete;
  // until it is visible to the peer (with a system-scope fence).
  __device__ void wait_read() { Store::template wait_read<0>(role_); }
  __device__ void wait_complete() { Store::wait_complete(role_); }
  __device__ void make_visible() { Store::make_visible(role_); }

  __device__ void publish(std::uint32_t* flag, std::uint32_t value) {
    Store::publish(role_, flag, value);
  }

 private:
  // `alone`: nothing follows at once, so the chunk is a group of its own. Otherwise the chunks of a
  // parcel share one group: closing a group costs the issuer about as much as issuing a copy.
  __device__ void send_chunk(bool alone) {
    // The parcel under way stays in registers: a chunk then costs no shared-memory round trip.
    if (offset_ == 0) current_ = parcels_[num_sent_ % kNumSlots];
    const std::uint32_t left = current_.bytes - offset_;
    const bool is_last = send_.chunk_bytes == 0 || left <= send_.chunk_bytes;
    const std::uint32_t bytes = is_last ? left : send_.chunk_bytes;
    Store::issue(role_, current_.destination, current_.source, offset_, bytes);
    ++num_chunks_;
    if (alone || is_last || send_.completion != Completion::accepted) {
      Store::commit(role_);
      ++num_groups_;
    }
    if (send_.completion == Completion::read) Store::template wait_read<0>(role_);
    if (send_.completion == Completion::visible) Store::make_visible(role_);
    offset_ += bytes;
    if (is_last) {
      offset_ = 0;
      end_of_previous_ = end_of_newest_;
      end_of_newest_ = num_groups_;
      ++num_sent_;
    }
  }

  // Until the groups of parcel `parcel_idx` have been read. Groups closed since then may stay in
  // flight; the instruction wants their number as a constant, so it is rounded down.
  __device__ void wait_read_of(std::uint32_t parcel_idx) {
    const std::uint32_t age = num_sent_ - 1 - parcel_idx;  // 0: the newest parcel that was sent
    const std::uint32_t newer = age == 0   ? num_groups_ - end_of_newest_
                                : age == 1 ? num_groups_ - end_of_previous_
                                           : 0;
    if (newer >= 8) {
      Store::template wait_read<8>(role_);
    } else if (newer >= 4) {
      Store::template wait_read<4>(role_);
    } else if (newer >= 2) {
      Store::template wait_read<2>(role_);
    } else if (newer == 1) {
      Store::template wait_read<1>(role_);
    } else {
      Store::template wait_read<0>(role_);
    }
  }

  Role role_;
  Send send_;
  Pacer pacer_;
  Storage& parcels_;
  std::uint32_t num_posted_ = 0;
  std::uint32_t num_sent_ = 0;         // parcels whose last chunk has been issued
  Parcel current_{};                   // the parcel being sent
  std::uint32_t offset_ = 0;           // within it
  std::uint32_t num_chunks_ = 0;       // issued in all
  std::uint32_t num_groups_ = 0;       // closed in all
  std::uint32_t end_of_newest_ = 0;    // num_groups_ at the end of the newest parcel sent
  std::uint32_t end_of_previous_ = 0;  // and of the one before
};

}  // namespace xstage::device

// Store kinds: how a chunk of shared memory leaves the SM. A `Store` type is the one template
// parameter of the outbox; a chunk is a linear run, a set of row segments or a tensor box.
//
// Every kind answers the same questions:
//   Destination             where a parcel goes
//   issue(...)              send `bytes` of the parcel from `offset` on
//   commit                  closes the group of what was issued since the last one
//   wait_read<n>            all but the newest n groups have been read from the source
//   wait_complete           all groups are complete, as the copy engine says
//   make_visible            complete, and ordered before whatever this role stores next
//   publish                 a flag that is seen only after all bytes sent before it
// The leader of a role alone issues bulk and tensor copies; register kinds use all its threads.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/role.cuh"

namespace xstage::device {

// A contiguous run.
struct LinearDestination {
  char* base;
  __device__ char* address(std::uint32_t offset) const { return base + offset; }
  // Of `bytes` from `offset` on, how many lie contiguously.
  __device__ std::uint32_t run_bytes(std::uint32_t, std::uint32_t bytes) const { return bytes; }
};

// Rows of 2^row_shift bytes, `pitch_bytes` apart, in the order of `row_order` (null: ascending).
struct RowsDestination {
  char* base;
  const std::uint32_t* row_order;
  std::uint32_t row_shift;
  std::uint32_t pitch_bytes;
  __device__ char* address(std::uint32_t offset) const {
    std::uint32_t row = offset >> row_shift;
    if (row_order != nullptr) row = __ldg(row_order + row);
    return base + static_cast<std::uint64_t>(row) * pitch_bytes +
           (offset & ((1u << row_shift) - 1));
  }
  __device__ std::uint32_t run_bytes(std::uint32_t offset, std::uint32_t bytes) const {
    const std::uint32_t left = (1u << row_shift) - (offset & ((1u << row_shift) - 1));
    return left < bytes ? left : bytes;
  }
};

// A 2-D tensor map; its box is one chunk of rows of 2^row_shift bytes.
struct TensorDestination {
  const void* map;
  std::int32_t column;
  std::int32_t row;
  std::uint32_t row_shift;
};

// --- register stores -----------------------------------------------------------------------------

// Copies `bytes` word by word, kUnroll independent words in flight per thread.
template <typename Word, typename Load, typename Store>
__device__ inline void copy_words(const Role& role, std::uint32_t bytes, Load load, Store store) {
  constexpr int kUnroll = 4;
  const std::uint32_t stride = role.num_threads * sizeof(Word);
  std::uint32_t at = role.thread_idx * sizeof(Word);
  for (; at + (kUnroll - 1) * stride < bytes; at += kUnroll * stride) {
    Word words[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) load(at + i * stride, words[i]);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) store(at + i * stride, words[i]);
  }
  for (; at < bytes; at += stride) {
    Word word;
    load(at, word);
    store(at, word);
  }
}

// Word: uint4, uint2 or std::uint32_t. The source is read by ordinary loads, so a chunk's source is
// free as soon as issue() has returned.
template <typename Word, typename Destination_ = LinearDestination>
struct RegisterStore {
  using Destination = Destination_;
  static constexpr bool kUsesCopyEngine = false;

  static __device__ void issue(const Role& role, const Destination& dst, const char* source,
                               std::uint32_t offset, std::uint32_t bytes) {
    const std::uint32_t from = shared_address(source) + offset;
    copy_words<Word>(
        role, bytes, [&](std::uint32_t at, Word& word) { load_shared(from + at, word); },
        [&](std::uint32_t at, Word word) { store_global(dst.address(offset + at), word); });
    role.sync();
  }

  static __device__ void commit(const Role&) {}
  template <int kPending>
  static __device__ void wait_read(const Role&) {}
  static __device__ void wait_complete(const Role&) {}

  // One thread's fence after the role's barrier covers the stores of all its threads: the barrier
  // orders them before the fence, and the fence is cumulative.
  static __device__ void make_visible(const Role& role) {
    role.sync();
    if (role.is_leader()) fence_system();
    role.sync();
  }

  static __device__ void publish(const Role& role, std::uint32_t* flag, std::uint32_t value) {
    role.sync();
    if (role.is_leader()) {
      fence_system();
      store_relaxed_system(flag, value);
    }
  }
};

// 4-byte remote adds without a result: `red` instead of `st`.
struct RedStore : RegisterStore<std::uint32_t> {
  static __device__ void issue(const Role& role, const Destination& dst, const char* source,
                               std::uint32_t offset, std::uint32_t bytes) {
    const std::uint32_t from = shared_address(source) + offset;
    copy_words<std::uint32_t>(
        role, bytes, [&](std::uint32_t at, std::uint32_t& word) { load_shared(from + at, word); },
        [&](std::uint32_t at, std::uint32_t word) {
          red_add_system(dst.address(offset + at), word);
        });
    role.sync();
  }
};

// Not a store: 16-byte remote loads, a contrast for the probe, since a load holds its issuer for a
// round trip. The words land in shared memory so that none can be dropped.
struct RemoteLoad : RegisterStore<uint4> {
  static __device__ void issue(const Role& role, const Destination& dst, const char* source,
                               std::uint32_t offset, std::uint32_t bytes) {
    char* sink = const_cast<char*>(source);
    copy_words<uint4>(
        role, bytes,
        [&](std::uint32_t at, uint4& word) {
          word = load_global_coherent(dst.address(offset + at));
        },
        [&](std::uint32_t at, uint4 word) {
          *reinterpret_cast<uint4*>(sink + offset + at) = word;
        });
    role.sync();
  }
};

// --- the bulk copy engine ------------------------------------------------------------------------

// What all kinds that go through the copy engine share.
struct CopyEngineStore {
  static constexpr bool kUsesCopyEngine = true;

  static __device__ void commit(const Role& role) {
    if (role.is_leader()) bulk_commit();
  }

  template <int kPending>
  static __device__ void wait_read(const Role& role) {
    if (role.is_leader()) bulk_wait_read<kPending>();
  }

  static __device__ void wait_complete(const Role& role) {
    if (role.is_leader()) bulk_wait_complete<0>();
  }

  // Completion alone is not visibility at a peer: the engine reports it as soon as the writes are
  // ordered for this SM. The fence waits until they have arrived.
  static __device__ void make_visible(const Role& role) {
    if (role.is_leader()) {
      bulk_wait_complete<0>();
      fence_system();
    }
  }

  // The thread that issued the copies waits until they are complete (not merely read), then
  // releases at system scope.
  static __device__ void publish(const Role& role, std::uint32_t* flag, std::uint32_t value) {
    if (role.is_leader()) {
      bulk_wait_complete<0>();
      store_release_system(flag, value);
    }
  }
};

template <typename Destination_ = LinearDestination>
struct BulkStore : CopyEngineStore {
  using Destination = Destination_;

  static __device__ void issue(const Role& role, const Destination& dst, const char* source,
                               std::uint32_t offset, std::uint32_t bytes) {
    if (role.is_leader()) {
      while (bytes > 0) {
        const std::uint32_t run = dst.run_bytes(offset, bytes);
        bulk_store(dst.address(offset), source + offset, run);
        offset += run;
        bytes -= run;
      }
    }
  }
};

struct BulkReduce : CopyEngineStore {
  using Destination = LinearDestination;

  static __device__ void issue(const Role& role, const Destination& dst, const char* source,
                               std::uint32_t offset, std::uint32_t bytes) {
    if (role.is_leader()) {
      bulk_reduce_add(reinterpret_cast<std::uint32_t*>(dst.address(offset)),
                      reinterpret_cast<const std::uint32_t*>(source + offset), bytes);
    }
  }
};

// A chunk is exactly one box: chunk_bytes = box rows << row_shift.
struct TensorStore : CopyEngineStore {
  using Destination = TensorDestination;

  static __device__ void issue(const Role& role, const Destination& dst, const char* source,
                               std::uint32_t offset, std::uint32_t) {
    if (role.is_leader()) {
      tensor_store_2d(dst.map, dst.column,
                      dst.row + static_cast<std::int32_t>(offset >> dst.row_shift),
                      source + offset);
    }
  }
};

}  // namespace xstage::device

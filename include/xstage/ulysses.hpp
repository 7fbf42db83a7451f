// Attention with the output exchange of Ulysses sequence parallelism: q, k and v hold all rows of
// this rank's heads, the result holds all heads of this rank's rows.
//
// Finished output tiles leave for their owners while the next tiles are computed (the fused path),
// or behind the attention kernel (the serial path); `status()` says which, and why. Both give the
// same bits. Every call only enqueues: it allocates nothing, never synchronises, and can be
// captured in a graph, which all ranks then replay equally often.
//
// All ranks make the same calls in the same order with the same AttentionCall. A rank's flags and
// two output buffers lie in the PeerMemory; calls take them in turn. out() of a call is complete
// behind wait() on the same stream, and valid until this rank's next run() begins to execute: work
// that reads it has to be ordered before that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "xstage/attention.hpp"
#include "xstage/attention_order.hpp"
#include "xstage/group.hpp"
#include "xstage/peers.hpp"
#include "xstage/send.hpp"
#include "xstage/tensor.hpp"
#include "xstage/timeline.hpp"

namespace xstage {

// The largest problem that an operator will be given; the same on all ranks.
struct AttentionShape {
  DataType dtype = DataType::bf16;
  std::int64_t num_batches = 1;
  std::int64_t max_rows = 0;           // of the whole sequence, with prefix and suffix
  std::int64_t max_rows_per_rank = 0;  // of one rank's result, with prefix and suffix; 0:
                                       // max_rows / ranks, rounded up
  std::int64_t num_heads = 0;          // of all ranks together
  std::int64_t num_kv_heads = 0;       // of all ranks together; 0: num_heads
  std::int64_t head_dim = 128;
  bool lse = false;  // calls may ask for the log-sum-exp
};

// One call; the same on all ranks.
struct AttentionCall {
  bool causal = false;
  float scale = 0.f;         // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t kv_len = -1;  // valid keys of every batch, the first ones; -1: all rows of k
  // Rows at the beginning and the end of the sequence that every rank gets a copy of (text tokens).
  std::int64_t prefix_rows = 0;
  std::int64_t suffix_rows = 0;
  // Rows between prefix and suffix that each rank owns; empty: as equal as possible, the first
  // ranks hold one more.
  std::span<const std::int64_t> seq_splits = {};
  // Heads that each rank computes; empty: as equal as possible, heads that share a KV head together
  // wherever there are as many KV heads as ranks.
  std::span<const std::int64_t> head_splits = {};
  TileOrder order = TileOrder::remote_first;
  bool lse = false;  // exchange the log-sum-exp as well
  bool split_last_wave = true;
  float rescale_threshold = kRescaleAsFastest;  // see AttentionOptions
  // run() waits as well, in its own kernel where that is possible: saves the launch of wait(),
  // which then has nothing left to do.
  bool wait = false;
};

enum class ExchangePath : std::uint8_t {
  automatic,  // fused wherever possible
  fused,      // the attention kernel stores to the owners; what it cannot do is refused
  serial,     // attention, then a kernel that pushes
};

[[nodiscard]] constexpr std::string_view to_string(ExchangePath path) noexcept {
  constexpr std::string_view kNames[] = {"automatic", "fused", "serial"};
  return kNames[static_cast<int>(path)];
}

// Finished rows go as boxes of a tensor map, 16 KiB (64 rows of one head) at once.
inline constexpr Send kDefaultExchangeSend{StoreKind::tensor, 16 * 1024, 0, Completion::accepted};

struct UlyssesOptions {
  // tensor: boxes of 8, 16, 32 or 64 rows and 64 elements, whatever chunk_bytes allows (`bulk` is
  // taken as tensor: the rows of a tile do not lie in one run). register16: stores of one warp.
  // Rows that no box can express are stored by the warp with either. One step is one key block.
  Send send = kDefaultExchangeSend;
  ExchangePath path = ExchangePath::automatic;
  int num_sms = 0;  // SMs to use; 0: this rank's share of its GPU
  // For comparison: as many of these SMs do nothing but send, from a copy in this rank's own
  // memory. Fused, bf16 alone. 0: warps that the computing SMs have to spare.
  int num_sending_sms = 0;
};

struct UlyssesStatus {
  ExchangePath path = ExchangePath::automatic;  // of the latest call: fused or serial
  std::string reason;                           // why not fused; empty if fused
  std::int64_t num_calls = 0;                   // of run(), captured ones included
  PeerStatus peers;                             // of the group
};

// Move-only. Created by all ranks, before any of them calls run().
class UlyssesAttention {
 public:
  // Takes buffer_bytes(max, ranks) of `memory` from byte `offset` on (a multiple of 1024, the same
  // on all ranks); `memory` has to outlive the operator. No call may be in flight on these bytes.
  // With a group of several processes the call is collective, and ranks that disagree on shape or
  // options are told so on every rank. Throws Error(usage) that names the value and the legal ones,
  // Error(not_possible) on a GPU that is not sm_90.
  UlyssesAttention(PeerMemory& memory, const AttentionShape& max,
                   const UlyssesOptions& options = {}, std::size_t offset = 0,
                   Group* group = nullptr);
  UlyssesAttention(UlyssesAttention&&) noexcept;
  UlyssesAttention& operator=(UlyssesAttention&&) noexcept;
  ~UlyssesAttention();

  // Bytes of peer memory that every rank needs.
  [[nodiscard]] static std::size_t buffer_bytes(const AttentionShape& max, int num_ranks);

  // Enqueues attention and exchange. q: [batch, all rows, this rank's heads, head_dim]; k and v the
  // same with this rank's KV heads (those that its heads use) and any number of rows; strides are
  // free as in attention_forward(). Every refusal comes before any launch.
  void run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionCall& call,
           Stream stream);

  // Allocates now what such a call will need, and launches nothing: the serial path and SMs that
  // only send keep the rows of this rank's heads in memory of their own, which else the first such
  // call allocates. Before a capture, and where several ranks share a process and a GPU: there an
  // allocation may wait for kernels that wait for a rank which has not been called yet.
  void reserve(const TensorView& q, const TensorView& k, const TensorView& v,
               const AttentionCall& call);

  // Enqueues the wait for all rows that this rank owns, of the latest run() on the stream. After it
  // out() and lse() hold the result. Gives up at the deadline of the peer memory or when the group
  // is dead; status() and PeerMemory::check() then say why.
  void wait(Stream stream);

  // The result of the latest call: [batch, own rows, all heads, head_dim], contiguous, rows in the
  // order prefix, shard, suffix.
  [[nodiscard]] TensorView out() const;
  // [batch, all heads, own rows]; null unless the call asked for it.
  [[nodiscard]] const float* lse() const;

  // Writes down what the fused path's senders do, of the first `max_tiles` tiles of every SM, in
  // the calls from now on (not in those that were captured before); 0: no longer. Allocates.
  void record(int max_tiles);
  // Of the latest call that was recorded; it has to be complete. Waits for the GPU.
  [[nodiscard]] Timeline timeline() const;

  // For the next calls; the same on all ranks.
  void set_options(const UlyssesOptions& options);
  [[nodiscard]] const UlyssesOptions& options() const noexcept;

  [[nodiscard]] UlyssesStatus status() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace xstage

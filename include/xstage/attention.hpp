// Attention on one Hopper GPU: out = softmax(scale * q k^T) v, for every batch and head.
//
// bf16 or fp16, head dimension 64 or 128; any number of query rows and keys; causal (aligned at the
// bottom right: the last query row sees all valid keys) or full; fewer KV heads than query heads.
// The call only enqueues: it allocates nothing, never synchronises, and can be captured in a graph.
// The same call on the same device gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xstage/tensor.hpp"

namespace xstage {

inline constexpr float kRescaleAsFastest = -1.f;

struct AttentionOptions {
  bool causal = false;
  float scale = 0.f;         // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t kv_len = -1;  // valid keys of every batch, the first ones; -1: all rows of k
  float* lse = nullptr;      // [batch, head, row], natural log of the sum of exponentials;
                             // -infinity for a row that sees no key. Null: not wanted
  // Tiles of the last partial wave are split along keys over the SMs that would idle. Needs a
  // workspace; ignored for causal.
  bool split_last_wave = true;
  // The running maximum of a row moves only when it grows by more than this many powers of two.
  // 0 is the textbook algorithm. Sums and products hold values of up to 2^this: 0..8 is legal, and
  // kRescaleAsFastest: what was measured to be fastest at the accuracy of 0, today 0.
  float rescale_threshold = kRescaleAsFastest;
  int num_sms = 0;  // SMs to use; 0: all
};

// The first bytes of a workspace, the only ones whose content counts before its first use.
inline constexpr std::size_t kAttentionCounterBytes = 8192;

struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Bytes that attention_forward() needs for these arguments on a GPU with `num_sms` SMs; 0 if it
// is full attention and nothing is split. The memory, 256-byte aligned, has to hold zeros in its
// first kAttentionCounterBytes (or all of it, if it is smaller) before its first use; every call
// leaves it ready for the next one on the same stream, of any shape. Throws Error(usage) like
// attention_forward().
[[nodiscard]] std::size_t attention_workspace_bytes(const TensorView& q, const TensorView& k,
                                                    const TensorView& v,
                                                    const AttentionOptions& options, int num_sms);

// Enqueues the computation of `out` (shape of q) on the current device. Strides are free, except
// that elements of a head are adjacent; pointers and strides are multiples of 16 bytes, strides
// below 2^40 bytes, sizes below 2^31. Sizes of 0 are legal: no query is no work, no key gives
// zeros. Before any launch throws Error(usage) that names the value and the legal ones,
// Error(not_possible) on a GPU that is not sm_90; Error(runtime) if CUDA fails.
void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const AttentionOptions& options,
                       const Workspace& workspace, Stream stream);

}  // namespace xstage

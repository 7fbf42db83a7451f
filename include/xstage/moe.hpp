// A mixture-of-experts layer whose experts are spread over ranks, for one Hopper GPU a rank:
//
//   y[t] = sum over slots k of weight[t, k] * W2_e(swiglu(W1_e x[t])),   e = id[t, k]
//
// in the order of the slots, shared experts last. bf16, or fp8 (e4m3 with float32 block scales).
// A call only enqueues a few kernels: it allocates nothing, never synchronises, and can be captured
// in a graph. All ranks must make the same calls, also those without a token. The same inputs at
// the same placement give the same bits. Numerics, traffic and protocol: docs/moe-layer.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "xstage/attention.hpp"  // Workspace
#include "xstage/data_type.hpp"
#include "xstage/peers.hpp"
#include "xstage/send.hpp"
#include "xstage/tensor.hpp"

namespace xstage {

// What all ranks agree on. Memory and protocol depend on nothing else.
struct MoeShape {
  int max_tokens = 0;          // of a rank in a call: 1..65536
  int hidden = 0;              // a multiple of 64 up to 16384
  int intermediate = 0;        // after the gate; the same
  int num_experts = 0;         // over all ranks, at least one a rank, up to 1024
  int top_k = 0;               // slots of a token: 1..32
  int num_shared_experts = 0;  // every rank has their weights and runs its own tokens through: 0..8
  DataType dtype = DataType::fp8;  // or bf16
};

// Who moves the bytes between ranks.
enum class MoeTransfer : std::uint8_t {
  pull,  // the receiver reads them from the sender's memory
  push,  // the sender stores them into the receiver's memory
};

// The same on all ranks, except num_sms.
struct MoeOptions {
  MoeTransfer dispatch = MoeTransfer::pull;
  MoeTransfer combine = MoeTransfer::pull;
  // A token that several experts of a rank want crosses the link once. Pull only.
  bool send_once = true;
  // silu(min(gate, clamp)) * clamp(up, -clamp, clamp); 0: no clamp.
  float clamp = 0.f;
  Send send = {};   // of pushed expert outputs: bulk, 16-byte multiples
  int num_sms = 0;  // SMs to use; 0: this rank's share of its GPU
};

// Experts `first` .. `first + count - 1` belong to the rank: as equal shares as there can be.
struct ExpertRange {
  int first = 0;
  int count = 0;
};
[[nodiscard]] ExpertRange moe_experts_of(const MoeShape& shape, int num_ranks, int rank);

// Prepared weights in the memory of the rank's GPU, 16-byte aligned: its experts in order, then the
// shared ones. Scales for fp8 alone. Layouts: moe/weights.hpp.
struct MoeWeights {
  const void* w1 = nullptr;  // [experts, 2 * intermediate, hidden], gate and up interleaved
  const float* w1_scales = nullptr;
  const void* w2 = nullptr;  // [experts, hidden, intermediate]
  const float* w2_scales = nullptr;
};

// The rows of a call in the rank's peer memory. Writing there saves run() a copy.
struct MoeInput {
  void* x = nullptr;          // [max_tokens, hidden]
  float* scales = nullptr;    // [max_tokens, ceil(hidden / 128)], fp8 alone
  std::size_t row_bytes = 0;  // between rows of x, and of scales
  std::size_t scale_row_bytes = 0;
};

// GPU memory. x, x_scales and y are 16-byte aligned and contiguous.
struct MoeCall {
  int num_tokens = 0;               // 0..max_tokens, may differ between ranks
  const void* x = nullptr;          // [num_tokens, hidden]; null: the rows are in input()
  const float* x_scales = nullptr;  // [num_tokens, ceil(hidden / 128)], fp8 with x
  // [num_tokens, top_k] of 32 or 64 bits; -1: the slot is empty. The same expert may come twice.
  const void* topk_ids = nullptr;
  bool ids_are_64_bit = false;
  const float* topk_weights = nullptr;  // [num_tokens, top_k]
  void* y = nullptr;                    // bf16 [num_tokens, hidden]
};

struct MoeStatus {
  bool fine = true;
  std::string text;
};

class MoeLayer {
 public:
  // Peer memory that a layer takes of each rank, from offset 0 on.
  [[nodiscard]] static std::size_t buffer_bytes(const MoeShape& shape, int num_ranks,
                                                const MoeOptions& options = {});
  // Workspace, 256-byte aligned, in the memory of the rank's GPU.
  [[nodiscard]] static std::size_t workspace_bytes(const MoeShape& shape, int num_ranks,
                                                   const MoeOptions& options = {});

  // Not collective; peer memory, weights and workspace must outlive the layer. The workspace and
  // the peer memory must be zero (peer memory is after its creation); a layer leaves them fit for
  // the next one of the same shape and options. Throws Error(usage) that names the value and the
  // legal ones, Error(not_possible) on a GPU that is not sm_90, Error(runtime).
  MoeLayer(PeerMemory& memory, const MoeShape& shape, const MoeWeights& weights,
           const Workspace& workspace, const MoeOptions& options = {});
  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;
  ~MoeLayer();

  [[nodiscard]] MoeInput input() const noexcept;

  // Enqueues a call. Inputs are read and y is written in stream order; input() may be written again
  // behind the call on the same stream. Errors as of the constructor.
  void run(const MoeCall& call, Stream stream);

  // Without synchronising: whether a wait has failed, the ranks' shapes differ, or an id was out of
  // range (its slot was taken as empty). The first that was seen.
  [[nodiscard]] MoeStatus status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace xstage

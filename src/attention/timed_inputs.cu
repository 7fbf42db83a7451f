#include <cuda_runtime.h>

#include <algorithm>

#include "attention/exchange_reference.hpp"
#include "attention/timed_inputs.hpp"

namespace xstage::attention {
namespace {

using probing::check;

constexpr std::size_t kAlignment = 4096;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Heads of q, k, v that a rank computes, and the first of them among all.
struct HeadRange {
  std::int64_t first;
  std::int64_t count;
};
HeadRange heads_of_tensor(const TimedShape& shape, int rank, int tensor) {
  if (tensor == 0) return {shape.first_head(rank), shape.heads_of(rank)};
  const std::int64_t per_kv = shape.workload.num_heads / shape.num_kv_heads();
  return {shape.first_head(rank) / per_kv, shape.kv_heads_of(rank)};
}
std::int64_t all_heads(const TimedShape& shape, int tensor) {
  return tensor == 0 ? shape.workload.num_heads : shape.num_kv_heads();
}

// The same offsets on all ranks: the largest tensor of each kind.
std::size_t tensor_room(const TimedShape& shape, int tensor) {
  std::int64_t heads = 0;
  for (int r = 0; r < shape.num_ranks; ++r) {
    heads = std::max(heads, heads_of_tensor(shape, r, tensor).count);
  }
  return aligned(shape.tensor_bytes(shape.workload.sequence, heads));
}

}  // namespace

std::size_t TimedInputs::bytes(const TimedShape& shape) {
  std::size_t total = kAlignment;
  for (int t = 0; t < kMaxPushTensors; ++t) total += tensor_room(shape, t);
  return total;
}

std::string TimedInputs::why_not(const TimedShape& shape) {
  return shape.num_kv_heads() < shape.num_ranks ? "several ranks share a KV head" : "";
}

TimedInputs::TimedInputs(const TimedShape& shape, PeerMemory& memory, std::size_t offset,
                         const std::function<Tensors(int)>& of_rank, Stream stream)
    : shape_(shape), memory_(memory), offset_(offset) {
  const AttentionWorkload& w = shape.workload;
  const int rank = memory.rank();
  const std::int64_t rows = shape.shards(rank).owner_rows(rank);
  TensorView owned[kMaxPushTensors];
  for (int t = 0; t < kMaxPushTensors; ++t) {
    const std::int64_t heads = all_heads(shape, t);
    owned_[t] = probing::Buffer(probing::Buffer::Place::device, memory.device(),
                                std::max<std::size_t>(shape.tensor_bytes(rows, heads), 256));
    owned[t] = TensorView::bshd(owned_[t].data(), w.dtype, w.batch, rows, heads, w.head_dim);
  }
  for (int i = 1; i <= shape.num_ranks; ++i) {
    const int r = (rank + i) % shape.num_ranks;  // the own one last
    const Tensors from = of_rank(r);
    const TensorView* views[] = {&from.q, &from.k, &from.v};
    for (int t = 0; t < kMaxPushTensors; ++t) {
      const HeadRange heads = heads_of_tensor(shape, r, t);
      reference_gather(shape.shards(r), rank, *views[t],
                       heads_of(owned[t], heads.first, heads.count), stream);
      if (r != rank) continue;
      // What ghosts would send lies there already.
      const Tensors mine = tensors();
      const TensorView* to[] = {&mine.q, &mine.k, &mine.v};
      check(
          cudaMemcpyAsync(to[t]->data, views[t]->data, shape.tensor_bytes(w.sequence, heads.count),
                          cudaMemcpyDefault, static_cast<cudaStream_t>(stream.handle)),
          "inputs");
    }
  }
  std::vector<std::vector<TensorView>> to(kMaxPushTensors);
  std::vector<std::vector<std::int64_t>> first(kMaxPushTensors);
  std::vector<ScatterTensor> tensors;
  for (int t = 0; t < kMaxPushTensors; ++t) {
    for (int p = 0; p < shape.num_ranks; ++p) {
      const Tensors theirs = tensors_of(p);
      const TensorView* views[] = {&theirs.q, &theirs.k, &theirs.v};
      to[static_cast<std::size_t>(t)].push_back(*views[t]);
      first[static_cast<std::size_t>(t)].push_back(heads_of_tensor(shape, p, t).first);
    }
    tensors.push_back(
        {owned[t], to[static_cast<std::size_t>(t)], first[static_cast<std::size_t>(t)]});
  }
  plan_ = scatter_plan(shape.shards(rank), tensors);
}

TimedInputs::Tensors TimedInputs::tensors_of(int rank) const {
  const AttentionWorkload& w = shape_.workload;
  char* at = static_cast<char*>(memory_.table().bases[rank]) + offset_ + kAlignment;
  TensorView views[kMaxPushTensors];
  for (int t = 0; t < kMaxPushTensors; ++t) {
    views[t] = TensorView::bshd(at, w.dtype, w.batch, w.sequence,
                                heads_of_tensor(shape_, rank, t).count, w.head_dim);
    at += tensor_room(shape_, t);
  }
  return {views[0], views[1], views[2]};
}

TimedInputs::Tensors TimedInputs::tensors() const {
  return tensors_of(memory_.rank());
}

PushSync TimedInputs::sync() const {
  return flags_in(memory_, offset_);
}

void TimedInputs::enqueue(Stream stream) const {
  const PushSync flags = sync();
  push(plan_, flags, {}, stream);
  wait_for_rows(flags.wait, flags.epoch, arrivals_in(memory_, offset_),
                memory_.num_computing_ranks(), stream);
}

void TimedInputs::poison(int byte, Stream stream) const {
  const Tensors mine = tensors();
  const SequenceShards shards = shape_.shards(memory_.rank());
  const bool all = memory_.num_computing_ranks() > 1;
  for (const TensorView* t : {&mine.q, &mine.k, &mine.v}) {
    for (std::int64_t b = 0; b < t->num_batches; ++b) {
      const std::int64_t first = all ? 0 : shards.first_row[shards.rank];
      const std::int64_t last = all ? t->num_rows : shards.first_row[shards.rank + 1];
      char* at = static_cast<char*>(t->data) + 2 * (b * t->batch_stride + first * t->row_stride);
      check(cudaMemsetAsync(at, byte, static_cast<std::size_t>((last - first) * t->row_stride) * 2,
                            static_cast<cudaStream_t>(stream.handle)),
            "cudaMemsetAsync");
    }
  }
}

}  // namespace xstage::attention

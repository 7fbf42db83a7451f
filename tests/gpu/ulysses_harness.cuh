// Several ranks of an attention with its exchange on one GPU, and the same done with all owners
// local: the plain kernel by the same plan, then a reference exchange. Inputs are one tensor of all
// heads, of which each rank is given a view of its own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/exchange_host.cuh"
#include "attention/exchange_problem.hpp"
#include "attention/exchange_reference.hpp"
#include "attention/forward_host.cuh"
#include "attention/push_plan.hpp"
#include "gpu/gpu.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::test {

inline constexpr int kPoisonByte = 0xa5;

// Uniform numbers in (-2, 2) from a counter.
static __global__ void fill_uniform(std::uint16_t* out, std::int64_t count, bool is_fp16,
                                    std::uint32_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    std::uint64_t x =
        (static_cast<std::uint64_t>(i) + (std::uint64_t{seed} << 36)) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    const float value = static_cast<float>(x >> 40) / 4194304.f - 2.f;
    out[i] = is_fp16 ? __half_as_ushort(__float2half(value))
                     : __bfloat16_as_ushort(__float2bfloat16(value));
  }
}

struct UlyssesCase {
  AttentionCall call;  // its spans are set from the vectors below
  std::vector<std::int64_t> seq_splits, head_splits;
  std::int64_t num_batches = 1, num_rows = 0, num_keys = 0;
  UlyssesOptions options;

  [[nodiscard]] AttentionCall given() const {
    AttentionCall c = call;
    c.seq_splits = seq_splits;
    c.head_splits = head_splits;
    return c;
  }
};

class UlyssesRanks {
 public:
  // `ghosts`: one computing rank, the others are its images there.
  UlyssesRanks(const AttentionShape& max, int num_ranks,
               const std::optional<GhostOptions>& ghosts = {}, std::uint64_t deadline_ns = 0)
      : max_(max),
        num_ranks_(num_ranks),
        num_computing_(ghosts ? 1 : num_ranks),
        layout_(attention::exchange_layout(max, num_ranks)) {
    PeerOptions options;
    if (deadline_ns > 0) options.deadline_ns = deadline_ns;
    const std::size_t bytes = UlyssesAttention::buffer_bytes(max, num_ranks);
    const std::vector<int> devices(static_cast<std::size_t>(num_computing_), 0);
    memories = PeerMemory::create_local(devices, bytes, options);
    if (ghosts) memories[0] = PeerMemory::emulate(std::move(memories[0]), num_ranks, *ghosts);
    for (int rank = 0; rank < num_computing_; ++rank) {
      ops.emplace_back(memories[static_cast<std::size_t>(rank)], max);
      streams.push_back(std::make_unique<Stream>(0));
    }
    const auto rows = static_cast<std::size_t>(max.num_batches * max.max_rows);
    const auto heads = static_cast<std::size_t>(max.num_heads);
    const auto dim = static_cast<std::size_t>(max.head_dim);
    for (Buffer* b : {&q_, &k_, &v_, &local_}) *b = make(rows * heads * dim * 2);
    local_lse_ = make(rows * heads * sizeof(float));
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "properties");
    num_sms_ = properties.multiProcessorCount;
    workspace_ = make(attention::max_workspace_bytes(num_sms_, max.head_dim));
    check(cudaMemset(workspace_.data(), 0, workspace_.size()), "cudaMemset");
    for (int rank = 0; rank < num_ranks; ++rank) images_.push_back(make(bytes));
    num_different_ = make(sizeof(std::uint64_t));
    check(cudaMemset(num_different_.data(), 0, num_different_.size()), "cudaMemset");
  }

  [[nodiscard]] int num_computing() const { return num_computing_; }

  // New inputs, on the default stream.
  void fill(const UlyssesCase& c, std::uint32_t seed) {
    const bool is_fp16 = max_.dtype == DataType::fp16;
    const std::int64_t q = c.num_batches * c.num_rows * max_.num_heads * max_.head_dim;
    const std::int64_t kv = c.num_batches * c.num_keys * kv_heads() * max_.head_dim;
    fill_uniform<<<256, 256>>>(q_.as<std::uint16_t>(), q, is_fp16, seed);
    fill_uniform<<<256, 256>>>(k_.as<std::uint16_t>(), kv, is_fp16, seed + 1);
    fill_uniform<<<256, 256>>>(v_.as<std::uint16_t>(), kv, is_fp16, seed + 2);
  }

  // All bytes behind the headers, of what is computed and of what is expected.
  void poison() {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      check(cudaMemsetAsync(region(rank) + begin(), kPoisonByte, size()), "cudaMemset");
      check(cudaMemsetAsync(image(rank) + begin(), kPoisonByte, size()), "cudaMemset");
    }
  }

  // What the next run() has to give, in slot `slot`; on the default stream.
  void expect(const UlyssesCase& c, int slot) {
    const AttentionCall call = c.given();
    for (int rank = 0; rank < num_computing_; ++rank) {
      const attention::ExchangeProblem problem = problem_of(c, call, rank);
      const attention::Problem& p = problem.attention;
      const TensorView out = TensorView::bshd(local_.data(), max_.dtype, p.num_batches,
                                              p.num_query_rows, p.num_heads, p.head_dim);
      attention::enqueue_forward(p, q_of(c, problem), k_of(c, problem), v_of(c, problem), out,
                                 {call.lse ? local_lse_.as<float>() : nullptr},
                                 {workspace_.data(), workspace_.size()}, {});
      const TensorView lse = TensorView::bhsd(local_lse_.data(), DataType::bf16, p.num_batches,
                                              p.num_query_rows, p.num_heads, 2);
      for (int owner = 0; owner < num_ranks_; ++owner) {
        if (attention::expected_rows(problem, owner) == 0) continue;
        attention::reference_gather(
            problem.shards, owner, out,
            attention::destination(problem, owner, image(owner) + layout_.out_offset[slot]), {});
        if (!call.lse) continue;
        const TensorView all =
            TensorView::bhsd(image(owner) + layout_.lse_offset[slot], DataType::bf16, p.num_batches,
                             problem.shards.owner_rows(owner), max_.num_heads, 2);
        attention::reference_gather(problem.shards, owner, lse,
                                    attention::heads_of(all, problem.first_head, p.num_heads), {});
      }
    }
  }

  // Rank 0's attention alone, by the same plan, into memory that nobody looks at.
  void forward(const UlyssesCase& c, xstage::Stream stream) {
    const AttentionCall call = c.given();
    const attention::ExchangeProblem problem = problem_of(c, call, 0);
    const attention::Problem& p = problem.attention;
    attention::enqueue_forward(p, q_of(c, problem), k_of(c, problem), v_of(c, problem),
                               TensorView::bshd(local_.data(), max_.dtype, p.num_batches,
                                                p.num_query_rows, p.num_heads, p.head_dim),
                               {nullptr}, {workspace_.data(), workspace_.size()}, stream);
  }

  void run(const UlyssesCase& c, int rank) {
    const AttentionCall call = c.given();
    const attention::ExchangeProblem problem = problem_of(c, call, rank);
    UlyssesAttention& op = ops[static_cast<std::size_t>(rank)];
    op.set_options(c.options);
    op.run(q_of(c, problem), k_of(c, problem), v_of(c, problem), call, stream(rank));
    op.wait(stream(rank));
  }
  // What run() would allocate; while ranks wait for each other nothing may be allocated or loaded.
  void reserve(const UlyssesCase& c) {
    const AttentionCall call = c.given();
    for (int rank = 0; rank < num_computing_; ++rank) {
      const attention::ExchangeProblem problem = problem_of(c, call, rank);
      UlyssesAttention& op = ops[static_cast<std::size_t>(rank)];
      op.set_options(c.options);
      op.reserve(q_of(c, problem), k_of(c, problem), v_of(c, problem), call);
    }
  }
  void run(const UlyssesCase& c) {
    reserve(c);
    for (int rank = 0; rank < num_computing_; ++rank) run(c, rank);
  }

  void check_groups() const {
    for (const PeerMemory& memory : memories) memory.check();
  }

  // Bytes of all ranks' buffers that are not as expected, since the last call of this function.
  std::uint64_t take_different() {
    for (int rank = 0; rank < num_ranks_; ++rank) count_different(rank, {});
    return read_different();
  }
  void count_different(int rank, xstage::Stream stream) {
    count_different_at(rank, begin(), size(), stream);
  }
  void count_different_at(int rank, std::size_t offset, std::size_t bytes, xstage::Stream stream) {
    attention::count_different_bytes(region(rank) + offset, image(rank) + offset,
                                     static_cast<std::int64_t>(bytes),
                                     num_different_.as<std::uint64_t>(), stream);
  }
  std::uint64_t read_different() {
    std::uint64_t count = 0;
    check(cudaMemcpy(&count, num_different_.data(), sizeof count, cudaMemcpyDefault), "compare");
    check(cudaMemset(num_different_.data(), 0, sizeof count), "cudaMemset");
    return count;
  }

  [[nodiscard]] xstage::Stream stream(int rank) const {
    return {streams[static_cast<std::size_t>(rank)]->get()};
  }
  [[nodiscard]] int slot_of(int rank) const {
    const TensorView out = ops[static_cast<std::size_t>(rank)].out();
    return static_cast<char*>(out.data) == memory_base(rank) + layout_.out_offset[0] ? 0 : 1;
  }
  [[nodiscard]] char* region(int rank) const {
    return static_cast<char*>(memories[0].table().bases[rank]);
  }
  [[nodiscard]] char* image(int rank) const {
    return images_[static_cast<std::size_t>(rank)].data();
  }
  [[nodiscard]] const attention::ExchangeLayout& layout() const { return layout_; }

  std::vector<PeerMemory> memories;
  std::vector<UlyssesAttention> ops;
  std::vector<std::unique_ptr<Stream>> streams;

 private:
  static Buffer make(std::size_t bytes) {
    return Buffer(Buffer::Place::device, 0, std::max<std::size_t>(bytes, 256));
  }
  [[nodiscard]] std::int64_t kv_heads() const {
    return max_.num_kv_heads > 0 ? max_.num_kv_heads : max_.num_heads;
  }
  [[nodiscard]] char* memory_base(int rank) const { return region(rank); }
  [[nodiscard]] static std::size_t begin() {
    return attention::align_up(sizeof(attention::ExchangeHeader), attention::kLayoutAlignment);
  }
  [[nodiscard]] std::size_t size() const { return layout_.bytes - begin(); }

  // By the arguments that this rank's tensors will have.
  attention::ExchangeProblem problem_of(const UlyssesCase& c, const AttentionCall& call,
                                        int rank) const {
    std::int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += heads_of_rank(c, r);
    const std::int64_t heads = heads_of_rank(c, rank);
    const std::int64_t group = max_.num_heads / kv_heads();
    const std::int64_t kv = heads == 0 ? 0 : (first + heads - 1) / group - first / group + 1;
    const auto view = [&](const Buffer& b, std::int64_t rows, std::int64_t all, std::int64_t from,
                          std::int64_t count) {
      return attention::heads_of(
          TensorView::bshd(b.data(), max_.dtype, c.num_batches, rows, all, max_.head_dim), from,
          count);
    };
    const PeerMemory& memory = memories[static_cast<std::size_t>(rank)];
    const int share = sm_share(num_sms_, memory.num_co_located(), memory.co_located_idx());
    return attention::make_exchange_problem(
        {rank, num_ranks_,
         (c.options.num_sms > 0 ? c.options.num_sms : share) - c.options.num_sending_sms},
        max_, c.options, view(q_, c.num_rows, max_.num_heads, first, heads),
        view(k_, c.num_keys, kv_heads(), first / group, kv),
        view(v_, c.num_keys, kv_heads(), first / group, kv), call);
  }
  [[nodiscard]] std::int64_t heads_of_rank(const UlyssesCase& c, int rank) const {
    if (!c.head_splits.empty()) return c.head_splits[static_cast<std::size_t>(rank)];
    const std::int64_t unit = kv_heads() >= num_ranks_ ? max_.num_heads / kv_heads() : 1;
    const std::int64_t total = max_.num_heads / unit;
    return (total / num_ranks_ + (rank < total % num_ranks_ ? 1 : 0)) * unit;
  }
  TensorView q_of(const UlyssesCase& c, const attention::ExchangeProblem& p) const {
    return attention::heads_of(TensorView::bshd(q_.data(), max_.dtype, c.num_batches, c.num_rows,
                                                max_.num_heads, max_.head_dim),
                               p.first_head, p.attention.num_heads);
  }
  TensorView kv_of(const Buffer& b, const UlyssesCase& c,
                   const attention::ExchangeProblem& p) const {
    const std::int64_t group = max_.num_heads / kv_heads();
    return attention::heads_of(TensorView::bshd(b.data(), max_.dtype, c.num_batches, c.num_keys,
                                                kv_heads(), max_.head_dim),
                               p.first_head / group, p.attention.num_kv_heads);
  }
  TensorView k_of(const UlyssesCase& c, const attention::ExchangeProblem& p) const {
    return kv_of(k_, c, p);
  }
  TensorView v_of(const UlyssesCase& c, const attention::ExchangeProblem& p) const {
    return kv_of(v_, c, p);
  }

  AttentionShape max_;
  int num_ranks_;
  int num_computing_;
  int num_sms_ = 0;
  attention::ExchangeLayout layout_;
  Buffer q_, k_, v_, local_, local_lse_, workspace_, num_different_;
  std::vector<Buffer> images_;
};

}  // namespace xstage::test

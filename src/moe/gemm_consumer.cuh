// The consumers' role in the grouped GEMM, many rows: two warpgroups multiply a tile of 128 rows x
// 256 columns, 64 rows each; a tile of up to 64 rows is split by columns instead.
//
// Accumulators: float[128], as two halves of 128 columns; fragment layout as in device/wgmma.cuh. A
// tile of 64 rows uses the first half alone, for columns 128 * group and up.
#pragma once

#include <cstdint>

#include "moe/gemm_epilogue.cuh"
#include "moe/gemm_producer.cuh"

namespace xstage::moe {

// What both kinds of consumers do with stages and tasks.
template <class Traits>
struct ConsumerBase {
  const GemmParams& params;
  GemmShared<Traits>& shared;
  const int group;           // 0 or 1
  const int thread;          // 0..127
  const std::uint32_t rank;  // in the cluster
  std::uint32_t count = 0;   // steps consumed

  __device__ ConsumerBase(const GemmParams& p, GemmShared<Traits>& s, int group_idx, int thread_idx,
                          std::uint32_t cluster_rank)
      : params(p), shared(s), group(group_idx), thread(thread_idx), rank(cluster_rank) {}

  __device__ __forceinline__ std::uint32_t wait_stage() const {
    const std::uint32_t stage = count % Traits::kNumStages;
    dev::mbarrier_wait(&shared.full[stage], count / Traits::kNumStages & 1);
    return stage;
  }
  __device__ __forceinline__ void release(std::uint32_t stage) const {
    if constexpr (Traits::kClusterBlocks == 1) {
      if (thread % 32 == 0) dev::mbarrier_arrive(&shared.empty[stage]);
    } else {
      if (thread % 32 < Traits::kClusterBlocks) {
        dev::mbarrier_arrive_cluster(
            dev::cluster_address(&shared.empty[stage], static_cast<std::uint32_t>(thread % 32)));
      }
    }
  }
  __device__ __forceinline__ int column(const GemmTask& task) const {
    return task.column_tile * Traits::kTaskColumns;
  }
};

// Scales of the weights of a tile at 32 steps, a step a lane: of columns 0-127 and 128-255, or of
// gate and up.
template <class Traits>
struct WeightScales {
  const float* source[2];
  float value[2];

  __device__ __forceinline__ void begin(const GemmParams& params, const GemmTask& task,
                                        int column) {
    const std::int64_t blocks = params.num_scale_columns;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t matrix = Traits::kIsSwiglu ? task.expert * 2 + i : task.expert;
      const int block = Traits::kIsSwiglu ? column / kTileColumns : column / kScaleBlock + i;
      // Columns beyond the last are zeros, whatever their scale.
      const std::int64_t row = matrix * blocks + (block < blocks ? block : blocks - 1);
      source[i] = params.w_scales + row * params.num_steps;
    }
    load(params, 0);
  }
  // Every 32 steps, in order.
  __device__ __forceinline__ void load(const GemmParams& params, int step) {
    const int mine = min(step + static_cast<int>(threadIdx.x % 32), params.num_steps - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) value[i] = __ldg(source[i] + mine);
  }
  __device__ __forceinline__ float at(int i, int step) const {
    return __shfl_sync(~0u, value[i], step % 32);
  }
};

template <class Traits>
struct Consumer : ConsumerBase<Traits> {
  using Element = typename Traits::Element;
  using Half = float[64];
  using Base = ConsumerBase<Traits>;
  using Base::Base;
  using Base::count, Base::group, Base::params, Base::shared, Base::thread;

  WeightScales<Traits> w_scales;

  __device__ __forceinline__ static Half& half_of(float (&acc)[128], int half) {
    return *reinterpret_cast<Half*>(acc + 64 * half);
  }
  // Where this warpgroup's operands begin in a stage.
  template <int kColumns>
  __device__ __forceinline__ std::uint64_t rows_descriptor(std::uint32_t stage) const {
    const std::uint32_t offset = kColumns == 256 ? group * (kBlockRows * kStepBytes) : 0;
    return dev::k_major_descriptor(dev::shared_address(shared.a[stage]) + offset);
  }
  template <int kColumns>
  __device__ __forceinline__ std::uint64_t weights_descriptor(std::uint32_t stage) const {
    const std::uint32_t offset = kColumns == 256 ? 0 : group * (128 * kStepBytes);
    return dev::k_major_descriptor(dev::shared_address(shared.b[stage]) + offset);
  }

  // bf16: the tensor cores sum over all of K.
  template <int kColumns>
  __device__ __forceinline__ void multiply(float (&acc)[128]) {
    using Sums = float[kColumns / 2];
    Sums& sums = *reinterpret_cast<Sums*>(acc);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0.f;
    dev::pin_registers(sums);
    std::uint32_t previous = 0;
#pragma unroll 1
    for (int step = 0; step < params.num_steps; ++step, ++count) {
      const std::uint32_t stage = this->wait_stage();
      const std::uint64_t a = rows_descriptor<kColumns>(stage);
      const std::uint64_t b = weights_descriptor<kColumns>(stage);
      dev::wgmma_fence();
#pragma unroll
      for (int i = 0; i < Traits::kInstructionsPerStep; ++i) {
        dev::Wgmma<Element, kColumns>::template ss<true>(sums, dev::advance(a, 32 * i),
                                                         dev::advance(b, 32 * i));
      }
      dev::wgmma_commit();
      dev::wgmma_wait<1>();
      if (step > 0) this->release(previous);
      previous = stage;
    }
    dev::wgmma_wait<0>();
    dev::pin_registers(sums);
    this->release(previous);
  }

  // fp8: the tensor cores sum over 128 of K, fp32 units add these sums, scaled.
  template <int kColumns>
  __device__ __forceinline__ void multiply_scaled(float (&acc)[128]) {
    const int row = (kColumns == 256 ? group * kBlockRows : 0) + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) acc[i] = 0.f;
    Half partial;
#pragma unroll 1
    for (int step = 0; step < params.num_steps; ++step, ++count) {
      if (step % 32 == 0 && step > 0) w_scales.load(params, step);
      const float w0 = w_scales.at(0, step);
      const float w1 = w_scales.at(1, step);
      const std::uint32_t stage = this->wait_stage();
      const std::uint64_t a = rows_descriptor<kColumns>(stage);
      const std::uint64_t b = weights_descriptor<kColumns>(stage);
      const float s0 = shared.a_scales[stage][row];
      const float s1 = shared.a_scales[stage][row + 8];
#pragma unroll
      for (int half = 0; half < kColumns / 128; ++half) {
        dev::pin_registers(partial);
        dev::wgmma_fence();
        dev::Wgmma<Element, 128>::template ss<false>(partial, a,
                                                     dev::advance(b, half * (128 * kStepBytes)));
#pragma unroll
        for (int i = 1; i < Traits::kInstructionsPerStep; ++i) {
          dev::Wgmma<Element, 128>::template ss<true>(
              partial, dev::advance(a, 32 * i),
              dev::advance(b, half * (128 * kStepBytes) + 32 * i));
        }
        dev::wgmma_commit();
        float even = w0;  // scales of even and odd groups of 8 columns
        float odd = w1;
        if constexpr (!Traits::kIsSwiglu) {
          if constexpr (kColumns == 256) {
            even = half == 0 ? w0 : w1;
          } else {
            even = group == 0 ? w0 : w1;
          }
          odd = even;
        }
        const float factors[2][2] = {{__fmul_rn(s0, even), __fmul_rn(s1, even)},
                                     {__fmul_rn(s0, odd), __fmul_rn(s1, odd)}};
        dev::wgmma_wait<0>();
        dev::pin_registers(partial);
        if (half == kColumns / 128 - 1) this->release(stage);
        Half& sums = half_of(acc, half);
#pragma unroll
        for (int i = 0; i < 64; ++i) {
          sums[i] = __fmaf_rn(partial[i], factors[i / 4 % 2][i / 2 % 2], sums[i]);
        }
      }
    }
  }

  template <int kColumns, class Epilogue>
  __device__ __forceinline__ void compute(const GemmTask& task, Epilogue& epilogue,
                                          std::uint32_t task_idx, GemmTask& next, bool& has_next) {
    float acc[128];
    if constexpr (Traits::kIsFp8) {
      multiply_scaled<kColumns>(acc);
    } else {
      multiply<kColumns>(acc);
    }
    const int first_column = this->column(task);
    // The scales of the next tile are on their way during the epilogue, if the tile is known.
    has_next = try_take_task(shared, task_idx + 1, next);
    next = share_of<Traits>(next, this->rank);
    if constexpr (Traits::kIsFp8) {
      if (has_next && next.expert >= 0) w_scales.begin(params, next, this->column(next));
    }
    if (first_column < params.n) {
      epilogue.template store<kColumns>(params, shared, task, first_column, group, thread, acc);
    }
  }

  template <class Epilogue>
  __device__ __forceinline__ void run(Epilogue& epilogue) {
    GemmTask task;
    bool is_taken = false;
    for (std::uint32_t task_idx = 0;; ++task_idx) {
      if (!is_taken) {
        task = share_of<Traits>(take_task(shared, task_idx), this->rank);
        if constexpr (Traits::kIsFp8) {
          if (task.expert >= 0) w_scales.begin(params, task, this->column(task));
        }
      }
      if (task.expert < 0) break;
      GemmTask next;
      if (task.num_rows > kBlockRows) {
        compute<256>(task, epilogue, task_idx, next, is_taken);
      } else {
        compute<128>(task, epilogue, task_idx, next, is_taken);
      }
      task = next;
    }
    epilogue.finish(thread);
  }
};

}  // namespace xstage::moe

// The consumers' role in the grouped GEMM, few rows: the time is that of reading the weights, which
// take the place of the 64-row operand; up to 64 rows of A are the other one, 16, 32 or 64 wide.
// Same sums in the same order as with many rows.
//
// A warpgroup has half of a task's columns (SwiGLU 256, otherwise 128), as blocks of 64, one a pass
// over K. Accumulators acc[block][4j + 2h + e]: column 64 * block + 16 * warp + l/4 + 8h, row 8j +
// 2(l%4) + e. With SwiGLU h = 0 is a gate, h = 1 its up.
#pragma once

#include <cstdint>

#include "moe/gemm_consumer.cuh"

namespace xstage::moe {

template <class Traits>
struct FewRowsConsumer : ConsumerBase<Traits> {
  using Element = typename Traits::Element;
  using Base = ConsumerBase<Traits>;
  using Base::Base;
  using Base::count, Base::group, Base::params, Base::shared, Base::thread;
  template <int kN>
  using Sums = float[Traits::kNumPasses][kN / 2];

  WeightScales<Traits> w_scales;

  __device__ __forceinline__ std::uint64_t weights_descriptor(std::uint32_t stage) const {
    return dev::k_major_descriptor(dev::shared_address(shared.b[stage]) +
                                   group * (64 * kStepBytes));
  }
  __device__ __forceinline__ std::uint64_t rows_descriptor(std::uint32_t stage) const {
    return dev::k_major_descriptor(dev::shared_address(shared.a[stage]));
  }

  template <int kN>
  __device__ __forceinline__ void multiply(float (&acc)[kN / 2]) {
    dev::pin_registers(acc);
    std::uint32_t previous = 0;
#pragma unroll 1
    for (int step = 0; step < params.num_steps; ++step, ++count) {
      const std::uint32_t stage = this->wait_stage();
      const std::uint64_t a = weights_descriptor(stage);
      const std::uint64_t b = rows_descriptor(stage);
      dev::wgmma_fence();
#pragma unroll
      for (int i = 0; i < Traits::kInstructionsPerStep; ++i) {
        dev::Wgmma<Element, kN>::template ss<true>(acc, dev::advance(a, 32 * i),
                                                   dev::advance(b, 32 * i));
      }
      dev::wgmma_commit();
      dev::wgmma_wait<1>();
      if (step > 0) this->release(previous);
      previous = stage;
    }
    dev::wgmma_wait<0>();
    dev::pin_registers(acc);
    this->release(previous);
  }

  template <int kN>
  __device__ __forceinline__ void multiply_scaled(float (&acc)[kN / 2]) {
    float partial[kN / 2];
#pragma unroll 1
    for (int step = 0; step < params.num_steps; ++step, ++count) {
      if (step % 32 == 0 && step > 0) w_scales.load(params, step);
      const float w0 = w_scales.at(0, step);
      const float w1 = w_scales.at(1, step);
      // Of the thread's two columns: gate and up, or both in the same 128.
      const float w[2] = {w0, Traits::kIsSwiglu ? w1 : w0};
      const std::uint32_t stage = this->wait_stage();
      const std::uint64_t a = weights_descriptor(stage);
      const std::uint64_t b = rows_descriptor(stage);
      dev::pin_registers(partial);
      dev::wgmma_fence();
      dev::Wgmma<Element, kN>::template ss<false>(partial, a, b);
#pragma unroll
      for (int i = 1; i < Traits::kInstructionsPerStep; ++i) {
        dev::Wgmma<Element, kN>::template ss<true>(partial, dev::advance(a, 32 * i),
                                                   dev::advance(b, 32 * i));
      }
      dev::wgmma_commit();
      float s[kN / 4];  // of the thread's rows: 8j + 2(l%4) + e at 2j + e
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const float2 pair =
            *reinterpret_cast<const float2*>(&shared.a_scales[stage][8 * j + thread % 4 * 2]);
        s[2 * j] = pair.x;
        s[2 * j + 1] = pair.y;
      }
      dev::wgmma_wait<0>();
      dev::pin_registers(partial);
      __syncwarp();
      this->release(stage);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        const float factor = __fmul_rn(s[i / 4 * 2 + i % 2], w[i / 2 % 2]);
        acc[i] = __fmaf_rn(partial[i], factor, acc[i]);
      }
    }
  }

  __device__ __forceinline__ void sync_group() const {
    dev::named_barrier_sync(kGroupLocal + group, kWarpgroupThreads);
  }
  // The warpgroup's output buffer, when the copy engine has read it.
  __device__ __forceinline__ char* begin_buffer() const {
    if (thread == 0) dev::bulk_wait_read<0>();
    sync_group();
    return shared.out[group];
  }
  // After all have written: kN rows of the buffer, kRowBytes each.
  template <int kN, int kRowBytes>
  __device__ __forceinline__ void store_buffer(const GemmTask& task, int column,
                                               int num_columns) const {
    dev::fence_async_shared();
    sync_group();
    if (thread != 0 || column >= num_columns) return;
    for (int row = 0; row < kN; row += kStoreRows) {
      dev::tensor_store_2d(&params.out, column, task.row + row,
                           shared.out[group] + row * kRowBytes);
    }
    dev::bulk_commit();
  }

  // Columns 8 * (unit + {0, 1}) of rows 8j .. 8j + 15, from fragments whose rows are these columns.
  __device__ __forceinline__ static void write_transposed(char* buffer, int lane, int unit, int j,
                                                          std::uint32_t m0, std::uint32_t m1,
                                                          std::uint32_t m2, std::uint32_t m3) {
    const int row = 8 * (j + lane / 16) + lane % 8;
    const int my_unit = (unit + lane / 8 % 2) ^ (row % 8);
    dev::store_matrix_x4_transposed(
        dev::shared_address(buffer) + static_cast<std::uint32_t>(row * 128 + my_unit * 16), m0, m1,
        m2, m3);
  }

  template <int kN>
  __device__ __forceinline__ void store_plain(const GemmTask& task, int first_column,
                                              const Sums<kN>& acc) const {
    char* const buffer = begin_buffer();
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      const float* x = acc[0] + 4 * j;
      write_transposed(buffer, thread % 32, thread / 32 * 2, j, pack_bf16(x[0], x[1]),
                       pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    }
    store_buffer<kN, 128>(task, first_column + group * 64, params.n);
  }

  // SwiGLU of all sums: v[block][2j + e] is column 32 * block + 8 * warp + l/4 of 64, row 8j +
  // 2(l%4) + e.
  template <int kN>
  __device__ __forceinline__ void apply_swiglu(const GemmTask& task, const Sums<kN>& acc,
                                               float (&v)[2][kN / 4]) const {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const int row = i / 2 * 8 + thread % 4 * 2 + i % 2;
      const float weight =
          params.row_weights != nullptr ? __ldg(params.row_weights + task.row + row) : 1.f;
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const float* x = acc[block] + i / 2 * 4 + i % 2;
        v[block][i] = swiglu(x[0], x[2], params.clamp, weight);
      }
    }
  }

  template <int kN>
  __device__ __forceinline__ void store_swiglu(const GemmTask& task, int first_column,
                                               const Sums<kN>& acc) const {
    float v[2][kN / 4];
    apply_swiglu<kN>(task, acc, v);
    const int column = first_column / 2 + group * 64;
    char* const buffer = begin_buffer();
    if constexpr (Traits::kIsFp8) {
      float inverse[kN / 4];
      quantise_rows<kN>(task, first_column / 2, v, inverse);
      // Rows of 64 bytes; 16-byte unit u of row r lies at u ^ (r / 2 % 4).
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) {
        const int row = i / 2 * 8 + thread % 4 * 2 + i % 2;
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          const int c = 32 * block + thread / 32 * 8 + thread % 32 / 4;
          buffer[row * 64 + ((c / 16) ^ (row / 2 % 4)) * 16 + c % 16] = static_cast<char>(
              __nv_cvt_float_to_fp8(v[block][i] * inverse[i], __NV_SATFINITE, __NV_E4M3));
        }
      }
      store_buffer<kN, 64>(task, column, params.n / 2);
    } else {
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        const int row = 8 * (j + thread % 32 / 16) + thread % 8;
        const int unit = (thread % 32 / 8 % 2 * 4 + thread / 32) ^ (row % 8);
        dev::store_matrix_x4_transposed(
            dev::shared_address(buffer) + static_cast<std::uint32_t>(row * 128 + unit * 16),
            pack_bf16(v[0][2 * j], v[0][2 * j + 1]), pack_bf16(v[1][2 * j], v[1][2 * j + 1]),
            pack_bf16(v[0][2 * j + 2], v[0][2 * j + 3]),
            pack_bf16(v[1][2 * j + 2], v[1][2 * j + 3]));
      }
      store_buffer<kN, 128>(task, column, params.n / 2);
    }
  }

  // Scales of the rows over all 128 columns of the tile, which both warpgroups have.
  template <int kN>
  __device__ __forceinline__ void quantise_rows(const GemmTask& task, int column,
                                                const float (&v)[2][kN / 4],
                                                float (&inverse)[kN / 4]) const {
    const int warp = group * 4 + thread / 32;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      float amax = fmaxf(fabsf(v[0][i]), fabsf(v[1][i]));
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, lanes));
      }
      if (thread % 32 < 4) {
        shared.row_max[warp][i / 2 * 8 + thread % 4 * 2 + i % 2] = amax;
      }
    }
    dev::named_barrier_sync(kBothGroups, kNumGroups * kWarpgroupThreads);
    float* const out =
        params.out_scales + column / kScaleBlock * params.out_scale_stride + task.row;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const int row = i / 2 * 8 + thread % 4 * 2 + i % 2;
      float amax = 0.f;
#pragma unroll
      for (int w = 0; w < 8; ++w) amax = fmaxf(amax, shared.row_max[w][row]);
      const QuantScale scale = quant_scale(amax);
      inverse[i] = scale.inverse;
      if (group == 0 && thread < 4) out[row] = scale.scale;
    }
    dev::named_barrier_sync(kBothGroups, kNumGroups * kWarpgroupThreads);
  }

  template <int kN>
  __device__ __forceinline__ void compute(const GemmTask& task, std::uint32_t task_idx,
                                          GemmTask& next, bool& has_next) {
    Sums<kN> acc;
#pragma unroll
    for (int i = 0; i < Traits::kNumPasses * (kN / 2); ++i) acc[i / (kN / 2)][i % (kN / 2)] = 0.f;
#pragma unroll
    for (int pass = 0; pass < Traits::kNumPasses; ++pass) {
      if constexpr (Traits::kIsFp8) {
        if (pass > 0 && params.num_steps > 32) w_scales.load(params, 0);
        multiply_scaled<kN>(acc[pass]);
      } else {
        multiply<kN>(acc[pass]);
      }
    }
    const int first_column = this->column(task);
    has_next = try_take_task(shared, task_idx + 1, next);
    if constexpr (Traits::kIsFp8) {
      if (has_next && next.expert >= 0) w_scales.begin(params, next, this->column(next));
    }
    if constexpr (Traits::kIsSwiglu) {
      store_swiglu<kN>(task, first_column, acc);
    } else {
      store_plain<kN>(task, first_column, acc);
    }
  }

  __device__ __forceinline__ void run() {
    GemmTask task;
    bool is_taken = false;
    for (std::uint32_t task_idx = 0;; ++task_idx) {
      if (!is_taken) {
        task = take_task(shared, task_idx);
        if constexpr (Traits::kIsFp8) {
          if (task.expert >= 0) w_scales.begin(params, task, this->column(task));
        }
      }
      if (task.expert < 0) break;
      GemmTask next;
      switch (padded_rows<Traits>(task)) {
        case 16:
          compute<16>(task, task_idx, next, is_taken);
          break;
        case 32:
          compute<32>(task, task_idx, next, is_taken);
          break;
        default:
          compute<64>(task, task_idx, next, is_taken);
          break;
      }
      task = next;
    }
    if (thread == 0) dev::bulk_wait_complete<0>();
  }
};

}  // namespace xstage::moe

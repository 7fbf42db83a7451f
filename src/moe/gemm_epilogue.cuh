// Epilogues of the grouped GEMM, many rows: what becomes of a tile's sums. Each is an object of a
// warpgroup with
//   store<kColumns>(params, shared, task, first_column, group, thread, acc)   a tile's sums
//   finish(thread)                                                            after the last tile
// kColumns 256: 64 rows of the tile for this warpgroup; 128: the tile has 64 rows, and this
// warpgroup columns 128 * group and up. An epilogue that sends to peers takes the same place.
//
// A warp writes its 16 rows into panels of its own and has the copy engine store them; warps do not
// wait for each other.
#pragma once

#include <cstdint>

#include "moe/gemm_math.cuh"
#include "moe/gemm_tasks.cuh"

namespace xstage::moe {

// Named barriers; 0 is the block's.
enum Barrier : std::uint32_t { kBothGroups = 1, kGroupLocal = 2 };

// The two panels of a warp, used in turn.
class Panels {
 public:
  static constexpr std::uint32_t kBytes = kStoreRows * 128;

  // A panel that the copy engine has read.
  template <class Shared>
  __device__ __forceinline__ char* begin(Shared& shared, int group, int thread) {
    if (thread % 32 == 0) dev::bulk_wait_read<1>();
    __syncwarp();
    char* const panel =
        shared.out[group] + (thread / 32 * 2 + static_cast<int>(count_ % 2)) * kBytes;
    ++count_;
    return panel;
  }
  // Call after the warp has written: the leader may then store.
  __device__ __forceinline__ static bool is_written(int thread) {
    dev::fence_async_shared();
    __syncwarp();
    return thread % 32 == 0;
  }

 private:
  std::uint32_t count_ = 0;
};

// The first row of the task that this thread's warp has.
template <int kColumns>
__device__ __forceinline__ int warp_row(int group, int thread) {
  return (kColumns == 256 ? group * kBlockRows : 0) + thread / 32 * 16;
}

// 64 columns of a warp's rows, x[4j + 2h + e] as an accumulator, into a panel of 128-byte rows.
__device__ __forceinline__ void write_panel(char* panel, int thread, const float* x) {
  const int lane = thread % 32;
  const std::uint32_t row_address = dev::shared_address(panel) + lane % 16 * 128;
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const std::uint32_t unit = (chunk * 2 + lane / 16) ^ (lane % 8);
    const float* y = x + 8 * chunk;
    dev::store_matrix_x4(row_address + unit * 16, pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]),
                         pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
  }
}

// Sums as bf16.
template <class Traits>
struct PlainEpilogue {
  Panels panels;

  template <int kColumns>
  __device__ __forceinline__ void store(const GemmParams& params, GemmShared<Traits>& shared,
                                        const GemmTask& task, int first_column, int group,
                                        int thread, float (&acc)[128]) {
    const int row = task.row + warp_row<kColumns>(group, thread);
    const int column = first_column + (kColumns == 256 ? 0 : group * 128);
#pragma unroll
    for (int i = 0; i < kColumns / 64; ++i) {
      char* const panel = panels.begin(shared, group, thread);
      write_panel(panel, thread, acc + 32 * i);
      if (Panels::is_written(thread)) {
        if (column + 64 * i < params.n) {
          dev::tensor_store_2d(&params.out, column + 64 * i, row, panel);
        }
        dev::bulk_commit();
      }
    }
  }
  __device__ __forceinline__ void finish(int thread) const {
    if (thread % 32 == 0) dev::bulk_wait_complete<0>();
  }
};

// SwiGLU of a warp's rows; gate and up alternate in groups of 8 columns. Results in acc[0 ..
// kColumns / 4), fragment layout as before, half as many columns.
template <int kColumns>
__device__ __forceinline__ void apply_swiglu(const GemmParams& params, int row, int thread,
                                             float (&acc)[128]) {
  const int my_row = row + thread % 32 / 4;
  const bool is_weighted = params.row_weights != nullptr;
  const float weight[2] = {is_weighted ? __ldg(params.row_weights + my_row) : 1.f,
                           is_weighted ? __ldg(params.row_weights + my_row + 8) : 1.f};
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      acc[4 * i + j] = swiglu(acc[8 * i + j], acc[8 * i + 4 + j], params.clamp, weight[j / 2]);
    }
  }
}

template <class Traits>
struct SwigluEpilogue {
  Panels panels;

  template <int kColumns>
  __device__ __forceinline__ void store(const GemmParams& params, GemmShared<Traits>& shared,
                                        const GemmTask& task, int first_column, int group,
                                        int thread, float (&acc)[128]) {
    const int row = task.row + warp_row<kColumns>(group, thread);
    const int column = first_column / 2 + (kColumns == 256 ? 0 : group * 64);
    apply_swiglu<kColumns>(params, row, thread, acc);
    if constexpr (Traits::kIsFp8) {
      quantise<kColumns>(params, shared, row, column, group, thread, acc);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns / 128; ++i) {
        char* const panel = panels.begin(shared, group, thread);
        write_panel(panel, thread, acc + 32 * i);
        if (Panels::is_written(thread)) {
          if (column + 64 * i < params.n / 2) {
            dev::tensor_store_2d(&params.out, column + 64 * i, row, panel);
          }
          dev::bulk_commit();
        }
      }
    }
  }

  // Largest magnitude of each of the thread's two rows, over the 128 columns of the tile.
  template <int kColumns>
  __device__ __forceinline__ static void row_maxima(GemmShared<Traits>& shared, int group,
                                                    int thread, const float (&acc)[128],
                                                    float (&amax)[2]) {
    amax[0] = amax[1] = 0.f;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) amax[i / 2 % 2] = fmaxf(amax[i / 2 % 2], fabsf(acc[i]));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      amax[h] = fmaxf(amax[h], __shfl_xor_sync(~0u, amax[h], 1));
      amax[h] = fmaxf(amax[h], __shfl_xor_sync(~0u, amax[h], 2));
    }
    if constexpr (kColumns == 128) {  // the other warpgroup has the other 64 columns
      const int row = thread / 32 * 16 + thread % 32 / 4;
      if (thread % 4 == 0) {
        shared.row_max[group][row] = amax[0];
        shared.row_max[group][row + 8] = amax[1];
      }
      dev::named_barrier_sync(kBothGroups, kNumGroups * kWarpgroupThreads);
      amax[0] = fmaxf(amax[0], shared.row_max[1 - group][row]);
      amax[1] = fmaxf(amax[1], shared.row_max[1 - group][row + 8]);
      dev::named_barrier_sync(kBothGroups, kNumGroups * kWarpgroupThreads);
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void quantise(const GemmParams& params, GemmShared<Traits>& shared,
                                           int row, int column, int group, int thread,
                                           const float (&acc)[128]) {
    float amax[2];
    row_maxima<kColumns>(shared, group, thread, acc, amax);
    const QuantScale scale[2] = {quant_scale(amax[0]), quant_scale(amax[1])};
    const int lane = thread % 32;
    if (lane % 4 == 0 && (kColumns == 256 || group == 0)) {
      float* const out = params.out_scales + column / kScaleBlock * params.out_scale_stride + row;
      out[lane / 4] = scale[0].scale;
      out[lane / 4 + 8] = scale[1].scale;
    }
    // Sub-panels of 16 rows x 64 bytes; 16-byte unit u of row r lies at u ^ (r / 2 % 4).
    char* const panel = panels.begin(shared, group, thread);
    constexpr int kSubPanelBytes = kStoreRows * 64;
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = lane / 4 + 8 * h;
        const int unit = i % 8 / 2 ^ (r / 2 % 4);
        char* const place =
            panel + i / 8 * kSubPanelBytes + r * 64 + unit * 16 + i % 2 * 8 + lane % 4 * 2;
        *reinterpret_cast<std::uint16_t*>(place) = pack_e4m3(
            acc[4 * i + 2 * h] * scale[h].inverse, acc[4 * i + 2 * h + 1] * scale[h].inverse);
      }
    }
    if (Panels::is_written(thread)) {
#pragma unroll
      for (int i = 0; i < kColumns / 128; ++i) {
        if (column + 64 * i < params.n / 2) {
          dev::tensor_store_2d(&params.out, column + 64 * i, row, panel + i * kSubPanelBytes);
        }
      }
      dev::bulk_commit();
    }
  }

  __device__ __forceinline__ void finish(int thread) const {
    if (thread % 32 == 0) dev::bulk_wait_complete<0>();
  }
};

}  // namespace xstage::moe

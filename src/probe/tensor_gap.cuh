// Useful work for a gap: tensor-core instructions on operands that the copy engine loads from local
// memory, two stages deep. The power, the clock and the load path are then those of a real kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/ptx.cuh"
#include "device/wait.cuh"

namespace xstage::probing {

inline constexpr std::uint32_t kGapStageBytes = 16 * 1024;
inline constexpr std::uint32_t kGapSourceBytesPerSm = 256 * 1024;  // all SMs together fit in L2

struct TensorGapShared {
  std::uint64_t full[2];
};

// D += A * B of one warp, bf16 in, float32 out.
__device__ inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                    const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Multiplies what lies in `stage` `num_rounds` times; every warp of the CTA takes part.
__device__ inline void multiply_stage(const char* stage, int num_rounds, float (&sums)[4][4]) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(stage);
  const std::uint32_t lane = threadIdx.x;
  for (int round = 0; round < num_rounds; ++round) {
    std::uint32_t a[4];
    std::uint32_t b[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[(lane + i * 256 + round * 64) % 4096] & 0x3fff3fffu;
#pragma unroll
    for (int i = 0; i < 2; ++i) b[i] = words[(lane + i * 512 + round * 32) % 4096] & 0x3fff3fffu;
#pragma unroll
    for (int i = 0; i < 4; ++i) mma_m16n8k16(sums[i], a, b);
  }
}

class TensorGap {
 public:
  static constexpr int kRoundsPerStep = 16;

  __device__ TensorGap(TensorGapShared& shared, char* stages, const char* source)
      : shared_(shared), stages_(stages), source_(source) {
    if (source_ == nullptr) return;
    source_ += static_cast<std::uint64_t>(blockIdx.x) * kGapSourceBytesPerSm;
    if (threadIdx.x == 0) {
      device::mbarrier_init(&shared_.full[0], 1);
      device::mbarrier_init(&shared_.full[1], 1);
      device::mbarrier_init_fence();
    }
  }

  // Called by all threads of the CTA.
  __device__ void run(std::uint32_t num_steps, const device::WaitContext& wait) {
    float sums[4][4] = {};
    const std::uint32_t first = step_;
    if (threadIdx.x == 0) {
      load(first);
      if (num_steps > 1) load(first + 1);
    }
    for (; step_ < first + num_steps; ++step_) {
      device::wait_barrier(wait, &shared_.full[step_ % 2], (step_ / 2) % 2);
      multiply_stage(stages_ + step_ % 2 * kGapStageBytes, kRoundsPerStep, sums);
      __syncthreads();
      if (threadIdx.x == 0 && step_ + 2 < first + num_steps) load(step_ + 2);
    }
    // Never true for finite operands: keeps the products alive without a store to global memory.
    if (sums[0][0] + sums[1][1] + sums[2][2] + sums[3][3] == -1.0e30f) __nanosleep(1);
  }

 private:
  __device__ void load(std::uint32_t step) {
    std::uint64_t* barrier = &shared_.full[step % 2];
    device::mbarrier_arrive_expect_bytes(barrier, kGapStageBytes);
    device::bulk_load(stages_ + step % 2 * kGapStageBytes,
                      source_ + step * kGapStageBytes % kGapSourceBytesPerSm, kGapStageBytes,
                      barrier);
  }

  TensorGapShared& shared_;
  char* stages_;
  const char* source_;
  std::uint32_t step_ = 0;  // over the whole kernel: stage and parity follow from it
};

}  // namespace xstage::probing

// What a wait costs the loop around it, as the compiler sees it: a main loop with 96 live
// accumulators, with a bare spin and with wait_flag(). Left alone, the assembler takes for the cold
// path what it may, and a plain count says little; so each loop is given a number of registers and
// must do with them, without stack. Never launched; peers_budget.txt holds what is allowed.
#include "device/wait.cuh"

namespace xstage::gpu_test {

using namespace xstage::device;

// The fewest that the spinning loop can do with, and two more (three before sm_90).
constexpr int kSpinRegisters = 104;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr int kWaitRegisters = kSpinRegisters + 2;
#else
constexpr int kWaitRegisters = kSpinRegisters + 3;
#endif

template <bool kWithDeadline>
__global__ void __maxnreg__(kWithDeadline ? kWaitRegisters : kSpinRegisters)
    main_loop_kernel(WaitContext context, const float4* in, float* out, const std::uint32_t* flags,
                     int num_steps) {
  constexpr int kLive = 96;
  float live[kLive] = {};
  for (int step = 0; step < num_steps; ++step) {
    if constexpr (kWithDeadline) {
      (void)wait_flag(context, flags + step, 1, step, 256);
    } else {
      while (load_acquire_system(flags + step) < 1) {
      }
    }
    const float4 value = in[step * 256 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < kLive; i += 4) {
      live[i] += value.x * static_cast<float>(i);
      live[i + 1] = live[i + 1] * value.y + value.x;
      live[i + 2] = live[i + 2] * value.z + live[i];
      live[i + 3] += value.w * value.w * live[i + 1];
    }
  }
#pragma unroll
  for (int i = 0; i < kLive; ++i) out[i * 256 + threadIdx.x] = live[i];
}

template __global__ void main_loop_kernel<false>(WaitContext, const float4*, float*,
                                                 const std::uint32_t*, int);
template __global__ void main_loop_kernel<true>(WaitContext, const float4*, float*,
                                                const std::uint32_t*, int);

}  // namespace xstage::gpu_test

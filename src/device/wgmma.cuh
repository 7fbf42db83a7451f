// WGMMA of Hopper (sm_90a): one function an instruction, plus the shared-memory descriptors that it
// reads. 16-bit operands (8-bit ones: at the end), fp32 accumulators, M = 64 rows a warpgroup, K =
// 16 a step.
//
// Fragment of an accumulator d[N/2] of warp w, lane l: d[4j + 2h + e] is row 16w + l/4 + 8h, column
// 8j + 2(l%4) + e. Fragment of a register operand a[4] (16 x 16 a warp): a[0] rows l/4, columns
// 2(l%4) + {0,1}; a[1] the same 8 rows below; a[2], a[3] the same 8 columns to the right. So the
// accumulators of two neighbouring column groups, packed in pairs, are a register operand.
//
// All instructions are asynchronous: between wgmma_fence() and wgmma_wait<>() nobody may touch the
// registers or the shared memory that they use.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace xstage::device {

// Orders earlier register writes of this warpgroup before its next WGMMA.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of WGMMAs.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of the newest groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to these registers across this point.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&regs)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(regs[i])::"memory");
}

namespace detail {
// Descriptor without the address: 128-byte swizzle, groups of 8 rows 1024 bytes apart.
// leading_bytes matters for the transposed form alone.
constexpr std::uint64_t descriptor_base(std::uint32_t leading_bytes) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) |
         (std::uint64_t{leading_bytes >> 4} << 16);
}
}  // namespace detail

// Operand whose reduction dimension is contiguous: rows of 64 elements (128 bytes), 128-byte
// swizzle, 1024-byte aligned. A step of 16 along the reduction is 32 bytes.
__device__ __forceinline__ std::uint64_t k_major_descriptor(std::uint32_t shared_address) {
  return detail::descriptor_base(16) | ((shared_address & 0x3FFFFu) >> 4);
}

// Operand whose reduction dimension is the row: rows of 64 elements, 128-byte swizzle. Columns 64
// and up lie panel_bytes further. A step of 16 along the reduction is 16 rows = 2048 bytes.
template <std::uint32_t kPanelBytes>
__device__ __forceinline__ std::uint64_t mn_major_descriptor(std::uint32_t shared_address) {
  static_assert(kPanelBytes % 1024 == 0 && (kPanelBytes >> 4) < (1u << 14));
  return detail::descriptor_base(kPanelBytes) | ((shared_address & 0x3FFFFu) >> 4);
}

// Advances a descriptor by a number of bytes (a multiple of 16) inside the same shared memory.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Operand lists of the inline assembly, eight registers a piece.
#define XSTAGE_F8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define XSTAGE_F32(d, i) \
  XSTAGE_F8(d, i), XSTAGE_F8(d, i + 8), XSTAGE_F8(d, i + 16), XSTAGE_F8(d, i + 24)
#define XSTAGE_P0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
#define XSTAGE_P16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define XSTAGE_P32 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,"
#define XSTAGE_P55 "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define XSTAGE_P64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define XSTAGE_P72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define XSTAGE_P80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define XSTAGE_P88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define XSTAGE_P96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define XSTAGE_P112 \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define XSTAGE_REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define XSTAGE_REGS_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define XSTAGE_REGS_64 XSTAGE_P0 XSTAGE_P16
#define XSTAGE_REGS_128 XSTAGE_REGS_64 XSTAGE_P32 XSTAGE_P55
#define XSTAGE_REGS_144 XSTAGE_REGS_128 XSTAGE_P64
#define XSTAGE_REGS_160 XSTAGE_REGS_144 XSTAGE_P72
#define XSTAGE_REGS_176 XSTAGE_REGS_160 XSTAGE_P80
#define XSTAGE_REGS_192 XSTAGE_REGS_176 XSTAGE_P88
#define XSTAGE_REGS_256 XSTAGE_REGS_192 XSTAGE_P96 XSTAGE_P112
#define XSTAGE_OUT_16(d) XSTAGE_F8(d, 0)
#define XSTAGE_OUT_32(d) XSTAGE_F8(d, 0), XSTAGE_F8(d, 8)
#define XSTAGE_OUT_64(d) XSTAGE_F32(d, 0)
#define XSTAGE_OUT_128(d) XSTAGE_F32(d, 0), XSTAGE_F32(d, 32)
#define XSTAGE_OUT_144(d) XSTAGE_OUT_128(d), XSTAGE_F8(d, 64)
#define XSTAGE_OUT_160(d) XSTAGE_OUT_144(d), XSTAGE_F8(d, 72)
#define XSTAGE_OUT_176(d) XSTAGE_OUT_160(d), XSTAGE_F8(d, 80)
#define XSTAGE_OUT_192(d) XSTAGE_F32(d, 0), XSTAGE_F32(d, 32), XSTAGE_F32(d, 64)
#define XSTAGE_OUT_256(d) XSTAGE_OUT_192(d), XSTAGE_F32(d, 96)

template <typename Element, int kN>
struct Wgmma;

// ss: d (+)= A * B^T, both from shared memory, reduction contiguous.
// rs: d += A * B, A from registers, B from shared memory with the reduction along its rows.
// A0..A5 are the numbers of the operands that follow the accumulators.
#define XSTAGE_WGMMA(Element, TYPE, N, A0, A1, A2, A3, A4)                                   \
  template <>                                                                                \
  struct Wgmma<Element, N> {                                                                 \
    template <bool kAccumulate>                                                              \
    __device__ static __forceinline__ void ss(float (&d)[N / 2], std::uint64_t a,            \
                                              std::uint64_t b) {                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #A2                                  \
                   ", 0;\n"                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                   " {" XSTAGE_REGS_##N "}, %" #A0 ", %" #A1 ", p, 1, 1, 0, 0;\n}\n"         \
                   : XSTAGE_OUT_##N(d)                                                       \
                   : "l"(a), "l"(b), "n"(kAccumulate ? 1 : 0));                              \
    }                                                                                        \
    __device__ static __forceinline__ void rs(float (&d)[N / 2], const std::uint32_t* a,     \
                                              std::uint64_t b) {                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                   " {" XSTAGE_REGS_##N "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #A4 \
                                        ", 1, 1, 1, 1;\n"                                    \
                   : XSTAGE_OUT_##N(d)                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                    \
    }                                                                                        \
  };
#define XSTAGE_WGMMA_BOTH(N, A0, A1, A2, A3, A4)             \
  XSTAGE_WGMMA(__nv_bfloat16, "bf16", N, A0, A1, A2, A3, A4) \
  XSTAGE_WGMMA(__half, "f16", N, A0, A1, A2, A3, A4)

XSTAGE_WGMMA_BOTH(64, 32, 33, 34, 35, 36)
XSTAGE_WGMMA_BOTH(128, 64, 65, 66, 67, 68)
XSTAGE_WGMMA_BOTH(144, 72, 73, 74, 75, 76)
XSTAGE_WGMMA_BOTH(160, 80, 81, 82, 83, 84)
XSTAGE_WGMMA_BOTH(176, 88, 89, 90, 91, 92)
XSTAGE_WGMMA_BOTH(192, 96, 97, 98, 99, 100)
XSTAGE_WGMMA(__nv_bfloat16, "bf16", 16, 8, 9, 10, 11, 12)
XSTAGE_WGMMA(__nv_bfloat16, "bf16", 32, 16, 17, 18, 19, 20)
XSTAGE_WGMMA(__nv_bfloat16, "bf16", 256, 128, 129, 130, 131, 132)

// 8-bit operands: K = 32 a step, which is 32 bytes as well; both reduction dimensions contiguous.
#define XSTAGE_WGMMA_FP8(N, A0, A1, A2)                                           \
  template <>                                                                     \
  struct Wgmma<__nv_fp8_e4m3, N> {                                                \
    template <bool kAccumulate>                                                   \
    __device__ static __forceinline__ void ss(float (&d)[N / 2], std::uint64_t a, \
                                              std::uint64_t b) {                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #A2                       \
                   ", 0;\n"                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N                         \
                   "k32.f32.e4m3.e4m3"                                            \
                   " {" XSTAGE_REGS_##N "}, %" #A0 ", %" #A1 ", p, 1, 1;\n}\n"    \
                   : XSTAGE_OUT_##N(d)                                            \
                   : "l"(a), "l"(b), "n"(kAccumulate ? 1 : 0));                   \
    }                                                                             \
  };
XSTAGE_WGMMA_FP8(16, 8, 9, 10)
XSTAGE_WGMMA_FP8(32, 16, 17, 18)
XSTAGE_WGMMA_FP8(64, 32, 33, 34)
XSTAGE_WGMMA_FP8(128, 64, 65, 66)

}  // namespace xstage::device

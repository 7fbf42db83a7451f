// Shapes of the attention forward kernel that are fixed at compile time, and its shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/forward_shape.hpp"
#include "attention/softmax.cuh"
#include "xstage/attention_order.hpp"

namespace xstage::attention {

inline constexpr int kSwizzleColumns = 64;  // 16-bit elements in 128 bytes: the width of a panel
inline constexpr int kNumStages = 2;        // of K and of V
inline constexpr int kNumItemSlots = 2;

template <typename Element_, int kHeadDim_, bool kCausal_>
struct ForwardTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kBlockKeys = block_keys(kHeadDim, kCausal);
  static constexpr int kNumPanels = kHeadDim / kSwizzleColumns;
  // By measurement: what wins with one key block and mask loses with another. whole_warp, with a
  // threshold of 8, is for causal attention and has not been measured yet.
  static constexpr MaxPolicy kMaxPolicy =
      kCausal || kHeadDim == 64 ? MaxPolicy::each_row_by_bits : MaxPolicy::each_row;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  static constexpr std::uint32_t kGroupPanelBytes = kGroupRows * kSwizzleColumns * 2;
  static constexpr std::uint32_t kKeyPanelBytes = kBlockKeys * kSwizzleColumns * 2;
  static constexpr std::uint32_t kGroupBytes = kNumPanels * kGroupPanelBytes;
  static constexpr std::uint32_t kKeyBlockBytes = kNumPanels * kKeyPanelBytes;

  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(kBlockKeys % 16 == 0 && kKeyPanelBytes % 1024 == 0);
};

// All panels are rows of 128 bytes with the 128-byte swizzle: 16-byte unit u of row r lies at u ^
// (r % 8).
template <class Traits>
struct alignas(1024) ForwardShared {
  alignas(1024) char q[kNumGroups][Traits::kGroupBytes];
  alignas(1024) char k[kNumStages][Traits::kKeyBlockBytes];
  alignas(1024) char v[kNumStages][Traits::kKeyBlockBytes];
  alignas(1024) char o[kNumGroups][Traits::kGroupBytes];
  // Full: bytes have landed. Empty: the consumers are done with them.
  std::uint64_t q_full[kNumGroups];
  std::uint64_t q_empty[kNumGroups];
  std::uint64_t k_full[kNumStages];
  std::uint64_t k_empty[kNumStages];
  std::uint64_t v_full[kNumStages];
  std::uint64_t v_empty[kNumStages];
  std::uint64_t o_full[kNumGroups];   // written by the consumers
  std::uint64_t o_empty[kNumGroups];  // read by the copy engine
  // Work items, from the loader to the other roles; the one after the last has num_key_blocks -1.
  std::uint64_t item_full[kNumItemSlots];
  std::uint64_t item_empty[kNumItemSlots];
  AttentionItem items[kNumItemSlots];
  // Whether the group's output buffer holds rows to store (false: a part that somebody else
  // combines).
  std::uint32_t o_valid[kNumGroups];
  std::uint32_t is_last_part[kNumGroups];
};

template <class Traits>
inline constexpr std::size_t kForwardSharedBytes = sizeof(ForwardShared<Traits>);

}  // namespace xstage::attention

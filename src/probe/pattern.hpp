// The payload: a word is a hash of where it goes, so that every byte on the peer can be checked
// without keeping a copy, and no two producers, rounds or runs send the same bytes.
#pragma once

#include <cstdint>

#include "xstage/send.hpp"

namespace xstage::probing {

// What the destination holds before a run; never a payload word by more than chance.
inline constexpr std::uint32_t kPoisonByte = 0xA5;
inline constexpr std::uint32_t kPoisonWord = 0xA5A5A5A5u;

XSTAGE_HOST_DEVICE constexpr std::uint32_t mix(std::uint32_t x) noexcept {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// Word `word_idx` of producer `producer_idx`'s burst.
XSTAGE_HOST_DEVICE constexpr std::uint32_t payload(std::uint32_t seed, std::uint32_t producer_idx,
                                                   std::uint32_t word_idx) noexcept {
  return mix(seed ^ mix(producer_idx * 0x9E3779B9u + word_idx));
}

}  // namespace xstage::probing

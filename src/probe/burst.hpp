// One burst experiment on the GPU: K producers, one a SM, each sending B bytes through an outbox
// every round, aligned or free-running. What the kernel needs, what it gives back.
#pragma once

#include <cstdint>
#include <vector>

#include "xstage/send.hpp"

namespace xstage::probing {

// How a producer's bytes lie at the destination. The parcel of a burst is `bytes` long; offset o of
// it goes to base + block + row(o) * pitch + (o mod row), rows taken in the order of row_order.
struct Layout {
  enum class Rows : std::uint8_t { contiguous, pitched, random };
  Rows rows = Rows::contiguous;
  std::uint32_t row_bytes = 256;  // a power of two; of pitched and random rows
  std::uint32_t pitch_bytes = 6144;
};

struct BurstSpec {
  StoreKind kind = StoreKind::bulk;
  Layout layout;
  Send send;  // kind is taken from `kind`
  int num_producers = 1;
  bool two_per_tpc = false;  // K < all: fill pairs of neighbouring SMs instead of spreading
  std::uint32_t bytes = 0;   // per producer and burst
  int num_bursts = 16;
  bool aligned = false;          // isolated: idle link and a common start before every burst
  bool measure_visible = false;  // wait for completion and a system-scope fence after each burst
  double idle_ns = 30'000;       // aligned: idle time before each burst
  double gap_ns = 0;             // free-running: spin between bursts
  int gap_steps = 0;             // free-running: tensor-core steps fed by loads, instead of a spin
  std::uint32_t seed = 1;
};

// Times of one producer, ns of its own SM's clock.
struct BurstTimes {
  float accept_ns = 0;    // issue instructions done
  float read_ns = 0;      // source reusable
  float complete_ns = 0;  // the copy engine calls it complete; 0 if not measured
  float visible_ns = 0;   // system-scope fence returned; 0 if not measured
  float start_ns = 0;     // since the first producer began
};

struct BurstRun {
  int num_producers = 0;
  int num_bursts = 0;
  std::vector<BurstTimes> times;  // [burst][producer]
  std::vector<std::uint32_t> sm;  // of each producer
  double cycles_per_ns = 0;       // mean over producers, during the run
  double kernel_ns = 0;           // by events, launch included
  std::uint64_t num_wrong_words = 0;
  std::uint64_t num_checked_words = 0;

  [[nodiscard]] const BurstTimes& at(int burst_idx, int producer_idx) const {
    return times[static_cast<std::size_t>(burst_idx) * num_producers + producer_idx];
  }
};

}  // namespace xstage::probing

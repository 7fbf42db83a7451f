// The mock attention: what pacing and ownership of the outbox are worth, before any attention
// kernel exists. See mock_attention.cuh for what the kernel does.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/link.hpp"
#include "xstage/send.hpp"

namespace xstage::probing {

// A finished output tile: 128 rows of 128 bf16 values.
inline constexpr std::uint32_t kTileSendBytes = 32 * 1024;

struct MockSpec {
  enum class Owner : std::uint8_t { spare_warp, consumers, none };
  Owner owner = Owner::spare_warp;  // none: the same kernel without communication
  Send send;
  int num_tiles = 8;  // waves: tiles of each SM
  int steps_per_tile = 16;
  int rounds_per_step = 128;  // tensor-core rounds: sets the length of a step
  std::uint32_t seed = 1;
};

struct MockRun {
  double total_ns = 0;          // slowest SM: common start -> every byte arrived
  double computed_ns = 0;       // slowest SM: common start -> last tile handed over
  double main_loop_ns = 0;      // mean over SMs: sum of the tiles' main loops
  std::vector<double> tile_ns;  // mean over SMs, by tile index: length of the main loop
  std::vector<double> tile_slowest_ns;
  std::vector<float> sm_tile_ns;  // [sm][tile], the raw samples of the two above
  std::uint64_t num_wrong_words = 0;
  std::uint64_t num_checked_words = 0;
};

[[nodiscard]] MockRun run_mock_attention(const Link& link, const MockSpec& spec);

}  // namespace xstage::probing

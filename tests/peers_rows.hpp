// What the tests of peer memory share: groups of test processes, random rows, a kernel's stores.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "xstage/group.hpp"
#include "xstage/peers.hpp"

namespace xstage::testing_support {

inline std::string fresh_job() {
  static std::atomic<int> count{0};
  return "peers test " + std::to_string(getpid()) + " " + std::to_string(count++);
}

inline Group join(int rank, int num_ranks, const std::string& job) {
  LaunchInfo launch;
  launch.rank = launch.local_rank = rank;
  launch.num_ranks = launch.num_local_ranks = num_ranks;
  launch.job = job;
  GroupOptions options;
  options.timeout_ns = 20'000'000'000;
  return Group::join(launch, options);
}

inline std::vector<std::uint32_t> random_words(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> words(count);
  for (auto& word : words) word = static_cast<std::uint32_t>(random());
  return words;
}

// Stores what a kernel would store: through the table.
inline void store(const PeerMemory& memory, int rank, std::size_t offset,
                  const std::vector<std::uint32_t>& words) {
  std::memcpy(static_cast<std::byte*>(memory.table().bases[rank]) + offset, words.data(),
              words.size() * 4);
}

}  // namespace xstage::testing_support

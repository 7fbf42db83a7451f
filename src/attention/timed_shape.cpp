#include "attention/timed_shape.hpp"

namespace xstage::attention {
namespace {

struct TimedFlags {
  std::uint32_t epoch;
  std::uint32_t last_use;
  std::uint32_t counter;
  alignas(128) std::uint32_t arrived[kMaxRanks];
};
static_assert(sizeof(TimedFlags) <= kTimedFlagBytes);

TimedFlags* flags_of(const PeerTable& table, int rank, std::size_t offset) {
  return reinterpret_cast<TimedFlags*>(static_cast<char*>(table.bases[rank]) + offset);
}

}  // namespace

PushSync flags_in(const PeerMemory& memory, std::size_t offset) {
  const PeerTable table = memory.table();
  TimedFlags* mine = flags_of(table, table.rank, offset);
  PushSync sync;
  sync.wait = memory.wait_context();
  sync.epoch = &mine->epoch;
  sync.last_use = &mine->last_use;
  sync.counter = &mine->counter;
  for (int p = 0; p < table.num_ranks; ++p) {
    sync.owners.push_back({&flags_of(table, p, offset)->arrived[table.rank], nullptr});
  }
  return sync;
}

const std::uint32_t* arrivals_in(const PeerMemory& memory, std::size_t offset) {
  const PeerTable table = memory.table();
  return flags_of(table, table.rank, offset)->arrived;
}

}  // namespace xstage::attention

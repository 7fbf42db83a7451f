// Loads behind stores. A main loop of depth d loads the data of step n when step n - d has ended
// and its buffer is free. Loads and stores of a GPU leave through one path in order: a load waits
// until what the GPU's stores have in the way at that moment, but for load_bypass_bytes, has
// drained.
//
// Steps are events only while that matters: from the moment at which the backlog of a GPU grows
// beyond the bypass until it has fallen below it and all late data are here.
#include <algorithm>
#include <utility>

#include "simulate/machine.hpp"

namespace xstage::sim {
namespace {

// Evenly spread over [-1, 1] in steps of 2^-16, from a hash: the same in every run.
Picoseconds spread(Picoseconds half_width, std::uint64_t sm, std::uint64_t step) {
  std::uint64_t x = (sm << 40) ^ step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  const auto position = static_cast<Picoseconds>(x & 0x1ffff) - 0x10000;
  return half_width * position / 0x10000;
}

}  // namespace

// Catches up with steps that no event has counted.
void Machine::count_skipped_steps(Worker& worker) {
  if (worker.step <= 0) {
    worker.steps_counted = worker.task.num_steps;
    return;
  }
  const Picoseconds now = worker.paused ? worker.pause_start : events_.now();
  const auto passed = static_cast<std::int32_t>(std::clamp<Picoseconds>(
      (now - worker.first_step) / worker.step, worker.steps_counted, worker.task.num_steps));
  // As many as can matter to the pacer.
  const auto enough =
      static_cast<std::int32_t>(std::min<std::uint32_t>(sender_.send.steps_per_chunk, 1u << 20));
  for (std::int32_t i = 0; i < std::min(passed - worker.steps_counted, enough); ++i) {
    worker.pacer.step();
  }
  worker.steps_counted = passed;
}

bool Machine::loads_matter(const Worker& worker) const {
  return loads_watched_[static_cast<std::size_t>(worker.gpu)] != 0 ||
         worker.last_data_ready > events_.now();
}

// After a store of this GPU.
void Machine::watch_loads(std::int32_t gpu) {
  char& watched = loads_watched_[static_cast<std::size_t>(gpu)];
  if (setup_.load_depth_steps == 0 || watched != 0) return;
  if (network_.store_backlog(gpu) <= load_bypass_) return;
  watched = 1;
  for (std::int32_t sm = 0; sm < setup_.num_sms; ++sm) {
    const std::int32_t index = index_of(gpu, sm);
    Worker& worker = workers_[static_cast<std::size_t>(index)];
    if (worker.state != State::main || worker.step_pending) continue;
    count_skipped_steps(worker);
    schedule_step(index);
  }
}

// A step has ended, `steps_counted` says which: its buffer takes the data of a later one.
void Machine::issue_load(Worker& worker) {
  if (setup_.load_depth_steps == 0) return;
  char& watched = loads_watched_[static_cast<std::size_t>(worker.gpu)];
  if (watched == 0) return;
  const Picoseconds behind = network_.drain_time(worker.gpu, load_bypass_);
  if (behind == 0) {
    watched = 0;
    return;
  }
  const std::int64_t step =
      worker.steps_before + worker.steps_counted - 1 + setup_.load_depth_steps;
  const Picoseconds jitter = std::min(behind, from_ns(setup_.load_jitter_ns));
  const Picoseconds here =
      events_.now() + from_ns(setup_.load_ns) + behind +
      spread(jitter, static_cast<std::uint64_t>(index_of(worker.gpu, worker.sm)),
             static_cast<std::uint64_t>(step));
  worker.data_ready[step % (SimMachine::kMaxLoadDepth + 1)] = here;
  worker.last_data_ready = std::max(worker.last_data_ready, here);
}

// Before step `steps_counted`: stops the main loop until its data are here.
void Machine::await_data(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  Picoseconds& ready = worker.data_ready[(worker.steps_before + worker.steps_counted) %
                                         (SimMachine::kMaxLoadDepth + 1)];
  const Picoseconds here = std::exchange(ready, 0);
  if (here <= events_.now() || worker.paused) return;
  pause(worker, false);
  events_.schedule(here, EventKind::data_here, index);
}

}  // namespace xstage::sim

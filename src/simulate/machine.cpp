#include "simulate/machine.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

// The event that opens the barrier is addressed to nobody.
constexpr std::int32_t kBarrierTarget = -1;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCategory::usage, text);
}

void require(bool holds, const std::string& what, double value, const char* legal) {
  if (!holds) refuse(what + " " + std::to_string(value) + ": legal " + legal);
}

}  // namespace

Machine::Machine(const SimMachine& machine, const SimSender& sender, SimProgram& program,
                 const SimOptions& options)
    : setup_(machine),
      sender_(sender),
      program_(program),
      options_(options),
      network_((validate(), machine), options, events_, *this),
      num_counters_(program.num_counters()) {
  const auto num_gpus = static_cast<std::size_t>(setup_.num_gpus);
  workers_.reserve(num_gpus * static_cast<std::size_t>(setup_.num_sms));
  for (std::int32_t gpu = 0; gpu < setup_.num_gpus; ++gpu) {
    for (std::int32_t sm = 0; sm < setup_.num_sms; ++sm) {
      Worker worker(sender_.send);
      worker.gpu = gpu;
      worker.sm = sm;
      workers_.push_back(worker);
    }
  }
  counters_.assign(num_gpus * static_cast<std::size_t>(num_counters_), 0);
  first_waiter_.assign(counters_.size(), -1);
  gpu_done_.assign(num_gpus, 0);
  if (setup_.link.load_bypass_bytes) {
    load_bypass_ = std::llround(*setup_.link.load_bypass_bytes);
  } else {
    setup_.load_depth_steps = 0;
  }
  loads_watched_.assign(num_gpus, 0);
}

void Machine::validate() const {
  const LinkParams& link = setup_.link;
  require(setup_.num_gpus >= 1 && setup_.num_gpus <= SimMachine::kMaxGpus, "GPUs", setup_.num_gpus,
          "1..72");
  require(setup_.num_sms >= 1 && setup_.num_sms <= 1024, "SMs", setup_.num_sms, "1..1024");
  require(link.drain_rate > 1e-3 && link.drain_rate < 1e6, "drain rate", link.drain_rate,
          "0.001..1e6 B/ns");
  require(link.injection_rate > 1e-3 && link.injection_rate < 1e6, "injection rate",
          link.injection_rate, "0.001..1e6 B/ns");
  require(setup_.ingress_rate >= 0 && setup_.ingress_rate < 1e6, "ingress rate",
          setup_.ingress_rate, "0 (as the link) or up to 1e6 B/ns");
  require(setup_.barrier_ns >= 0 && setup_.barrier_ns < 1e12, "barrier time", setup_.barrier_ns,
          "0..1e12 ns");
  require(setup_.load_depth_steps >= 0 && setup_.load_depth_steps <= SimMachine::kMaxLoadDepth,
          "load depth", setup_.load_depth_steps, "0..8 steps");
  require(setup_.load_ns >= 0 && setup_.load_ns < 1e9, "load time", setup_.load_ns, "0..1e9 ns");
  require(setup_.load_jitter_ns >= 0 && setup_.load_jitter_ns < 1e9, "spread of late loads",
          setup_.load_jitter_ns, "0..1e9 ns");
  require(link.share_spread >= 0 && link.share_spread < 1, "spread of shares", link.share_spread,
          "0..1, not 1");
  require(options_.segment_bytes >= 64 && options_.segment_bytes <= 1 << 30, "segment",
          options_.segment_bytes, "64 B..1 GiB");
  const auto capacity =
      link.capacity_mean_bytes ? link.capacity_mean_bytes : link.capacity_slowest_bytes;
  if (!capacity) {
    refuse(
        "the link has no capacity per SM: the simulator needs one; infinity asks for an unbounded "
        "stage");
  }
  require(*capacity >= 64, "capacity per SM", *capacity, "64 B or more");
  if (link.issue_curve.empty()) refuse("the link has no issue times into an empty stage");
}

SimReport Machine::run() {
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(workers_.size()); ++i) {
    const Worker& worker = workers_[static_cast<std::size_t>(i)];
    events_.schedule(from_ns(program_.start_ns(worker.gpu, worker.sm)), EventKind::wake, i);
  }
  for (std::int32_t gpu = 0; gpu < setup_.num_gpus; ++gpu) {
    for (const SimPull& pull : program_.pulls(gpu)) {
      if (pull.bytes <= 0) continue;
      pulls_.push_back(pull);
      network_.pull(gpu, pull.owner, pull.bytes, -static_cast<std::int32_t>(pulls_.size()));
    }
  }
  while (!events_.empty()) {
    dispatch(events_.pop());
    if (options_.check_every_event) network_.check_conservation();
    if (events_.num_popped() >= options_.max_events) {
      throw Error(ErrorCategory::check_failed,
                  "the simulation reached its limit of " + std::to_string(options_.max_events) +
                      " events after " + std::to_string(to_ns(events_.now()) / 1000) +
                      " us; a coarser segment or a smaller workload needs fewer");
    }
  }
  if (num_ended_ != static_cast<std::int32_t>(workers_.size())) {
    refuse("nobody can go on after " + std::to_string(to_ns(events_.now()) / 1000) +
           " us: " + std::to_string(workers_.size() - static_cast<std::size_t>(num_ended_)) +
           " SMs wait for data that no task makes");
  }
  return report();
}

void Machine::dispatch(const Event& event) {
  switch (event.kind) {
    case EventKind::wake: {
      if (event.target == kBarrierTarget) {
        open_barrier();
        return;
      }
      const Worker& worker = workers_[static_cast<std::size_t>(event.target)];
      if (worker.state == State::fetch) {
        fetch(event.target);
      } else if (worker.state == State::main && !worker.paused && event.time >= worker.main_end) {
        end_main(event.target);
      } else if (worker.state == State::epilogue && event.time >= worker.main_end) {
        publish(event.target);
      }
      return;
    }
    case EventKind::step:
      at_step(event.target);
      return;
    case EventKind::data_here:
      resume(event.target);
      return;
    case EventKind::fence:
      at_fence(event.target);
      return;
    default:
      network_.handle(event);
  }
}

// ---- the main role ----

void Machine::fetch(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  worker.task.stores.clear();
  worker.task.wait_counter = worker.task.done_counter = -1;
  switch (program_.next(worker.gpu, worker.sm, worker.task)) {
    case SimNext::end:
      pump(index, true);
      enter_state(worker, State::ended);
      ++num_ended_;
      gpu_done_[static_cast<std::size_t>(worker.gpu)] =
          std::max(gpu_done_[static_cast<std::size_t>(worker.gpu)], events_.now());
      return;
    case SimNext::barrier:
      arrive_at_barrier(index);
      return;
    case SimNext::task:
      break;
  }
  ++out_.num_tasks;
  const SimTask& task = worker.task;
  if (task.wait_counter >= 0) {
    const auto at = static_cast<std::size_t>(worker.gpu * num_counters_ + task.wait_counter);
    if (counters_[at] < task.wait_value) {
      enter_state(worker, State::wait_data);
      std::int32_t slot = static_cast<std::int32_t>(waiters_.size());
      if (free_waiters_.empty()) {
        waiters_.emplace_back();
      } else {
        slot = free_waiters_.back();
        free_waiters_.pop_back();
      }
      waiters_[static_cast<std::size_t>(slot)] = {index, first_waiter_[at]};
      first_waiter_[at] = slot;
      return;
    }
  }
  start_main(index);
}

void Machine::start_main(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  enter_state(worker, State::main);
  count_computing(1);
  const SimTask& task = worker.task;
  worker.step = from_ns(task.step_ns);
  worker.first_step = events_.now() + from_ns(task.prologue_ns);
  worker.main_end = worker.first_step + worker.step * task.num_steps;
  worker.steps_counted = 0;
  worker.paused_total = 0;
  if ((paced() && worker.pending_bytes > 0) || loads_matter(worker)) schedule_step(index);
  events_.schedule(worker.main_end, EventKind::wake, index);
  if (task.num_steps > 0) await_data(index);
}

void Machine::end_main(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (worker.steps_counted < worker.task.num_steps) {
    count_skipped_steps(worker);
    issue_load(worker);
  }
  worker.steps_before += worker.task.num_steps;
  count_computing(-1);
  compute_end_ = std::max(compute_end_, events_.now());
  leave_state(worker);
  worker.state = State::wait_outbox;
  worker.since = events_.now();
  try_epilogue(index);
}

// Starts the epilogue if the outbox can take the tile; sends what is left in it, unpaced, if not.
void Machine::try_epilogue(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  std::int64_t needed = 0;
  for (const SimStore& store : worker.task.stores)
    needed += store.destination == worker.gpu ? 0 : store.bytes;
  if (needed > 0) {
    const auto used = [&] {
      return worker.pending_bytes + (coupled() ? worker.unseen_bytes : waiting_bytes(worker));
    };
    if (used() > 0 && used() + needed > sender_.outbox_bytes) {
      pump(index, true);
      if (used() > 0 && used() + needed > sender_.outbox_bytes) return;
    }
  }
  enter_state(worker, State::epilogue);
  worker.main_end = events_.now() + from_ns(worker.task.epilogue_ns);
  if (worker.task.epilogue_ns > 0) {
    events_.schedule(worker.main_end, EventKind::wake, index);
  } else {
    publish(index);
  }
}

void Machine::publish(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (worker.task.done_counter >= 0) raise_counter(worker.gpu, worker.task.done_counter);
  const auto chunk = static_cast<std::int64_t>(sender_.send.chunk_bytes);
  for (const SimStore& store : worker.task.stores) {
    if (store.destination == worker.gpu || store.bytes <= 0) continue;
    for (std::int64_t left = store.bytes; left > 0;) {
      const std::int64_t size = chunk > 0 && chunk < left ? chunk : left;
      worker.pending.push({store.destination, size});
      worker.pending_bytes += size;
      left -= size;
    }
  }
  enter_state(worker, State::wait_sent);
  pump(index, sender_.owner == SendOwner::main_role && !paced());
  try_release(index);
}

// The main role goes on unless it sends itself and is not through.
void Machine::try_release(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (sender_.owner == SendOwner::main_role) {
    if (!paced() && worker.pending_bytes > 0) return;
    if (waiting_bytes(worker) > 0) return;
    if (coupled() && worker.unseen_bytes > 0) return;
  }
  const double held = to_ns(events_.now() - worker.since);
  leave_state(worker);
  program_.sent(worker.gpu, worker.sm, worker.task.id, to_ns(events_.now()), held);
  worker.state = State::fetch;
  worker.since = events_.now();
  fetch(index);
}

// ---- pauses of a main loop: late loads (loads.cpp), own stores ----

void Machine::pause(Worker& worker, bool by_send) {
  worker.paused = true;
  worker.paused_by_send = by_send;
  worker.pause_start = events_.now();
  count_computing(-1);
}

void Machine::resume(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const Picoseconds length = events_.now() - worker.pause_start;
  worker.paused = false;
  worker.paused_total += length;
  worker.first_step += length;
  worker.main_end += length;
  (worker.paused_by_send ? out_.main.wait_send_ns : out_.main.wait_load_ns) += to_ns(length);
  record(worker, worker.paused_by_send ? SpanKind::wait_send : SpanKind::wait_load,
         worker.pause_start, events_.now());
  count_computing(1);
  events_.schedule(worker.main_end, EventKind::wake, index);
  if (worker.step_pending) {
    worker.step_pending = false;
    schedule_step(index);
  }
}

// ---- the outbox ----

void Machine::schedule_step(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (worker.step_pending || worker.steps_counted >= worker.task.num_steps) return;
  worker.step_pending = true;
  events_.schedule(worker.first_step + worker.step * (worker.steps_counted + 1), EventKind::step,
                   index);
}

void Machine::at_step(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (worker.paused) return;  // resume() schedules it anew
  worker.step_pending = false;
  if (worker.state != State::main || worker.steps_counted >= worker.task.num_steps) return;
  ++worker.steps_counted;
  worker.pacer.step();
  issue_load(worker);
  pump(index, false);
  if ((paced() && worker.pending_bytes > 0) || loads_matter(worker)) schedule_step(index);
  if (worker.steps_counted < worker.task.num_steps) await_data(index);
}

// Sends what may be sent now.
void Machine::pump(std::int32_t index, bool everything) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  while (!worker.pending.empty()) {
    if (coupled() && worker.unseen_bytes > 0) return;
    if (sender_.send.completion == Completion::read && waiting_bytes(worker) > 0) return;
    if (!everything && !worker.pacer.take()) return;
    send_chunk(worker);
  }
}

void Machine::send_chunk(Worker& worker) {
  const SimStore chunk = worker.pending.front();
  worker.pending.pop();
  worker.pending_bytes -= chunk.bytes;
  worker.unseen_bytes += chunk.bytes;
  if (waiting_bytes(worker) == 0) {
    worker.batch_start = events_.now();
    worker.batch_bytes = 0;
  }
  worker.batch_bytes += chunk.bytes;
  const std::int32_t index = index_of(worker.gpu, worker.sm);
  network_.post(worker.gpu, worker.sm, chunk.destination, chunk.bytes, index);
  // A main role that sends during its main loop does nothing else meanwhile.
  if (sender_.owner == SendOwner::main_role && worker.state == State::main && !worker.paused) {
    pause(worker, true);
  }
  watch_loads(worker.gpu);
}

void Machine::on_accepted(std::int32_t gpu, std::int32_t sm) {
  const std::int32_t index = index_of(gpu, sm);
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const double issue = to_ns(events_.now() - worker.batch_start);
  const double alone = issue_time_empty(setup_.link, static_cast<double>(worker.batch_bytes));
  out_.issue_ns += issue;
  out_.issue_wait_ns += std::max(0.0, issue - alone);
  record(worker, SpanKind::issue, worker.batch_start, events_.now());
  if (worker.paused && worker.paused_by_send) resume(index);
  if (coupled()) {
    events_.schedule(network_.fence_end(gpu), EventKind::fence, index);
    return;
  }
  go_on(index);
}

void Machine::at_fence(std::int32_t index) {
  workers_[static_cast<std::size_t>(index)].unseen_bytes = 0;
  go_on(index);
}

// After a chunk: the next one, and whatever the main role waits for.
void Machine::go_on(std::int32_t index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const bool unpaced = !paced() || worker.state == State::wait_outbox ||
                       worker.state == State::ended || worker.state == State::barrier;
  if (!worker.pending.empty()) pump(index, unpaced);
  if (worker.state == State::wait_outbox) {
    try_epilogue(index);
  } else if (worker.state == State::wait_sent) {
    try_release(index);
  }
  try_barrier();
}

void Machine::on_visible(std::int32_t /*source_gpu*/, std::int32_t /*sm*/, std::int32_t destination,
                         std::int64_t /*bytes*/, std::int32_t tag) {
  auto& done = gpu_done_[static_cast<std::size_t>(destination)];
  done = std::max(done, events_.now());
  if (tag < 0) {
    const SimPull& pull = pulls_[static_cast<std::size_t>(-tag - 1)];
    if (pull.counter >= 0) raise_counter(destination, pull.counter);
  }
  try_barrier();
}

// ---- counters and barriers ----

void Machine::raise_counter(std::int32_t gpu, std::int32_t counter) {
  const auto at = static_cast<std::size_t>(gpu * num_counters_ + counter);
  ++counters_[at];
  if (first_waiter_[at] < 0) return;
  // Those that may go on leave the list first: starting one may append to it.
  std::int32_t* link = &first_waiter_[at];
  std::vector<std::int32_t> ready;
  while (*link >= 0) {
    Waiter& waiter = waiters_[static_cast<std::size_t>(*link)];
    if (workers_[static_cast<std::size_t>(waiter.worker)].task.wait_value <= counters_[at]) {
      ready.push_back(waiter.worker);
      free_waiters_.push_back(*link);
      *link = waiter.next;
    } else {
      link = &waiter.next;
    }
  }
  std::sort(ready.begin(), ready.end());
  for (const std::int32_t index : ready) {
    leave_state(workers_[static_cast<std::size_t>(index)]);
    start_main(index);
  }
}

void Machine::arrive_at_barrier(std::int32_t index) {
  enter_state(workers_[static_cast<std::size_t>(index)], State::barrier);
  ++num_at_barrier_;
  pump(index, true);
  try_barrier();
}

void Machine::try_barrier() {
  if (barrier_opening_ || num_at_barrier_ < static_cast<std::int32_t>(workers_.size())) return;
  if (!network_.quiescent()) return;
  for (const Worker& worker : workers_) {
    if (worker.pending_bytes > 0) return;
  }
  barrier_opening_ = true;
  events_.schedule(events_.now() + from_ns(setup_.barrier_ns), EventKind::wake, kBarrierTarget);
}

void Machine::open_barrier() {
  barrier_opening_ = false;
  num_at_barrier_ = 0;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(workers_.size()); ++i) {
    Worker& worker = workers_[static_cast<std::size_t>(i)];
    leave_state(worker);
    worker.state = State::fetch;
    worker.since = events_.now();
    fetch(i);
  }
}

}  // namespace xstage::sim

namespace xstage {

SimReport simulate(const SimMachine& machine, const SimSender& sender, SimProgram& program,
                   const SimOptions& options) {
  return sim::Machine(machine, sender, program, options).run();
}

}  // namespace xstage

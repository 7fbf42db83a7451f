// What the machine writes down: times of roles, activity, links, the timeline, the report of a run.
#include <algorithm>

#include "simulate/machine.hpp"

namespace xstage::sim {

void Machine::enter_state(Worker& worker, State state) {
  leave_state(worker);
  worker.state = state;
  worker.since = events_.now();
}

void Machine::leave_state(Worker& worker) {
  const Picoseconds now = events_.now();
  const double length = to_ns(now - worker.since);
  switch (worker.state) {
    case State::main:
      out_.main.compute_ns += length - to_ns(worker.paused_total);
      record(worker, SpanKind::compute, worker.since, now);
      break;
    case State::epilogue:
      out_.main.compute_ns += length;
      record(worker, SpanKind::epilogue, worker.since, now);
      break;
    case State::wait_data:
      out_.main.wait_data_ns += length;
      record(worker, SpanKind::wait_data, worker.since, now);
      break;
    case State::wait_outbox:
    case State::wait_sent:
      out_.main.wait_send_ns += length;
      record(worker, SpanKind::wait_send, worker.since, now);
      break;
    case State::barrier:
      out_.main.barrier_ns += length;
      record(worker, SpanKind::barrier, worker.since, now);
      break;
    case State::fetch:
    case State::ended:
      break;
  }
  worker.since = now;
}

void Machine::count_computing(std::int32_t change) {
  const Picoseconds now = events_.now();
  if (2 * num_computing_ < static_cast<std::int32_t>(workers_.size()))
    low_activity_ += now - computing_changed_;
  num_computing_ += change;
  computing_changed_ = now;
}

void Machine::record(const Worker& worker, SpanKind kind, Picoseconds start, Picoseconds end) {
  if (!options_.keep_timeline || end <= start) return;
  out_.timeline.spans.push_back(
      {worker.gpu, worker.sm, kind, worker.task.id, to_ns(start), to_ns(end)});
}

SimReport Machine::report() {
  Picoseconds total = 0;
  for (const Picoseconds done : gpu_done_) total = std::max(total, done);
  count_computing(0);
  low_activity_ += std::max<Picoseconds>(0, total - computing_changed_);
  out_.total_ns = to_ns(total);
  out_.compute_end_ns = to_ns(compute_end_);
  const auto num_workers = static_cast<double>(workers_.size());
  const RoleTimes& main = out_.main;
  out_.main.idle_ns =
      std::max(0.0, out_.total_ns * num_workers - main.compute_ns - main.wait_data_ns -
                        main.wait_send_ns - main.wait_load_ns - main.barrier_ns);
  double busiest_link = 0;
  for (std::int32_t gpu = 0; gpu < setup_.num_gpus; ++gpu) {
    out_.gpu_done_ns.push_back(to_ns(gpu_done_[static_cast<std::size_t>(gpu)]));
    const PortStatistics port = network_.statistics(gpu);
    LinkUse use;
    use.bytes = static_cast<double>(port.bytes);
    if (total > 0) {
      const auto span = static_cast<double>(total);
      use.busy_share = static_cast<double>(port.busy) / span;
      use.mean_backlog_bytes = port.backlog_byte_ps / span;
    }
    use.peak_backlog_bytes = static_cast<double>(port.peak_backlog);
    busiest_link = std::max(busiest_link, use.busy_share);
    out_.links.push_back(use);
  }
  const double whole = std::max(1e-9, out_.total_ns * num_workers);
  const double compute = main.compute_ns / whole;
  const double data = main.wait_data_ns / whole;
  const double idle = (main.idle_ns + main.barrier_ns) / whole;
  out_.critical = Resource::tensor_cores;
  double largest = compute;
  if (busiest_link > largest) {
    largest = busiest_link;
    out_.critical = Resource::link;
  }
  if (data > largest) {
    largest = data;
    out_.critical = Resource::data;
  }
  if (idle > largest) out_.critical = Resource::idle_sms;
  out_.low_activity_share =
      total > 0 ? static_cast<double>(low_activity_) / static_cast<double>(total) : 0;
  out_.num_events = events_.num_popped();
  out_.timeline.source = "simulated";
  return out_;
}

}  // namespace xstage::sim

namespace xstage {

std::string_view to_string(Resource resource) noexcept {
  switch (resource) {
    case Resource::tensor_cores:
      return "tensor cores";
    case Resource::link:
      return "link";
    case Resource::data:
      return "data";
    case Resource::idle_sms:
      return "idle SMs";
  }
  return "";
}

}  // namespace xstage

#include "simulate/network.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

// More than any run sends; an unbounded stage.
constexpr std::int64_t kUnbounded = std::int64_t{1} << 60;

// Keeps bytes x picoseconds of a message within 64 bits.
constexpr std::int64_t kMaxMessageBytes = std::int64_t{1} << 28;

std::int64_t capacity_of(const LinkParams& link) {
  const double bytes = link.capacity_mean_bytes.value_or(link.capacity_slowest_bytes.value_or(0));
  return bytes >= static_cast<double>(kUnbounded) ? kUnbounded : std::llround(bytes);
}

// The largest size not above `wanted` that divides the capacity (to a byte), so that rounding does
// not make the stage smaller.
std::int64_t segment_for(std::int64_t capacity, double wanted) {
  const auto limit = std::max<std::int64_t>(64, std::llround(wanted));
  if (capacity >= kUnbounded) return limit;
  const std::int64_t parts = (capacity + limit - 1) / limit;
  return capacity / parts;
}

}  // namespace

Network::Network(const SimMachine& machine, const SimOptions& options, EventList& events,
                 NetworkClient& client)
    : events_(events),
      client_(client),
      link_(machine.link),
      num_gpus_(static_cast<std::size_t>(machine.num_gpus)),
      num_sms_(static_cast<std::size_t>(machine.num_sms)),
      stages_per_gpu_(num_sms_ + num_gpus_),
      direct_(machine.fabric == Fabric::direct),
      contended_ingress_(machine.fabric == Fabric::switched && machine.num_gpus > 2),
      latency_(from_ns(machine.link.visible_latency_ns.value_or(0))) {
  const std::int64_t capacity = capacity_of(link_);
  segment_bytes_ = segment_for(capacity, options.segment_bytes);
  const double rate =
      link_.drain_rate * (machine.both_directions ? link_.both_directions_factor : 1.0);
  ingress_buffer_ =
      std::max<std::int64_t>(std::llround(machine.ingress_buffer_bytes), 2 * segment_bytes_);

  stages_.resize(num_gpus_ * stages_per_gpu_);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    stage.gpu = static_cast<std::int32_t>(i / stages_per_gpu_);
    stage.sm = static_cast<std::int32_t>(i % stages_per_gpu_);
    stage.capacity = is_responder(stage) ? kUnbounded : capacity;
    stage.weight = segment_bytes_;
  }
  for (std::size_t i = 0; i < num_sms_; ++i) {
    const double position =
        2.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(num_sms_) - 1.0;
    const double share = (1.0 + link_.share_spread * position) / (1.0 + link_.share_spread);
    weights_.push_back(
        std::max<std::int64_t>(1, std::llround(share * static_cast<double>(segment_bytes_))));
  }
  ports_.resize(direct_ ? num_gpus_ * num_gpus_ : num_gpus_);
  for (Port& port : ports_) port.rate = ExactRate(rate);
  ingresses_.resize(num_gpus_);
  for (Ingress& ingress : ingresses_) {
    ingress.rate = ExactRate(machine.ingress_rate > 0 ? machine.ingress_rate : rate);
  }
  posted_.assign(num_gpus_, 0);
  delivered_.assign(num_gpus_, 0);
  under_way_.assign(num_gpus_, 0);
}

void Network::post(std::int32_t gpu, std::int32_t sm, std::int32_t destination, std::int64_t bytes,
                   std::int32_t tag) {
  append(static_cast<std::int32_t>(stage_index(gpu, sm)), destination, bytes, tag);
}

void Network::pull(std::int32_t gpu, std::int32_t owner, std::int64_t bytes, std::int32_t tag) {
  Message message;
  message.destination = gpu;
  message.tag = tag;
  message.bytes = bytes;
  const auto responder =
      static_cast<std::int32_t>(stage_index(owner, static_cast<std::int32_t>(num_sms_) + gpu));
  ++num_messages_open_;
  const std::int32_t slot = keep(responder, message);
  events_.schedule(events_.now() + latency_ / 2, EventKind::pull_request, slot);
}

void Network::append(std::int32_t index, std::int32_t destination, std::int64_t bytes,
                     std::int32_t tag) {
  Stage& stage = stages_[static_cast<std::size_t>(index)];
  Message message;
  message.destination = destination;
  message.tag = tag;
  message.bytes = message.to_enter = message.to_drain = bytes;
  const auto size = static_cast<double>(bytes);
  if (is_responder(stage)) {
    message.issue = 0;
  } else if (bytes > kMaxMessageBytes) {
    throw Error(ErrorCategory::usage, "a message of " + std::to_string(bytes) +
                                          " bytes: legal 1.." + std::to_string(kMaxMessageBytes));
  } else if (stage.waiting == 0) {
    message.issue = from_ns(issue_time_empty(link_, size));
  } else {
    message.issue = from_ns(size / link_.injection_rate);
  }
  const bool was_idle = stage.waiting == 0;
  if (was_idle && !is_responder(stage) && num_sms_ > 1) {
    const auto turn = static_cast<std::size_t>(stage.num_batches++);
    stage.weight = weights_[(static_cast<std::size_t>(stage.sm) * 61 + turn * 37) % num_sms_];
  }
  stage.messages.push(message);
  stage.waiting += bytes;
  ++num_messages_open_;
  posted_[static_cast<std::size_t>(stage.gpu)] += bytes;
  Port& port = ports_[port_index(stage.gpu, destination)];
  account(port, bytes);
  if (!is_responder(stage)) port.store_backlog += bytes;
  if (was_idle) {
    stage.entry = stage.messages.size() - 1;
    start_entering(index);
  }
}

// Schedules the moment at which the next segment of the entering message is ready to enter.
void Network::start_entering(std::int32_t index) {
  Stage& stage = stages_[static_cast<std::size_t>(index)];
  const Message& message = stage.messages[stage.entry];
  const std::int64_t entered = message.bytes - message.to_enter;
  const std::int64_t next = entered + next_segment(message);
  // Differences of the exact positions, so that all segments together take exactly `issue`.
  const Picoseconds pace =
      message.issue * next / message.bytes - message.issue * entered / message.bytes;
  stage.entering = true;
  events_.schedule(events_.now() + pace, EventKind::inject, index);
}

// Moves ready segments into the stage; the first one is ready now.
void Network::enter(std::int32_t index) {
  Stage& stage = stages_[static_cast<std::size_t>(index)];
  Message& message = stage.messages[stage.entry];
  const std::int64_t segment = next_segment(message);
  stage.entering = false;
  if (stage.held + segment > stage.capacity) {
    stage.blocked = true;
    return;
  }
  stage.blocked = false;
  stage.held += segment;
  stage.waiting -= segment;
  message.to_enter -= segment;
  const bool message_in = message.to_enter == 0;
  if (message_in) ++stage.entry;
  if (stage.waiting > 0) start_entering(index);
  make_drainable(index);
  if (message_in && stages_[static_cast<std::size_t>(index)].waiting == 0 && !is_responder(stage)) {
    client_.on_accepted(stage.gpu, stage.sm);
  }
}

void Network::make_drainable(std::int32_t index) {
  Stage& stage = stages_[static_cast<std::size_t>(index)];
  if (stage.queued || stage.messages.empty()) return;
  const Message& message = stage.messages.front();
  if (message.to_drain == message.to_enter) {
    stage.credit = std::min(stage.credit, segment_bytes_);
    return;
  }
  stage.queued = true;
  const std::size_t port = port_index(stage.gpu, message.destination);
  ring_of(ports_[port], stage).push(index);
  if (!ports_[port].busy) start_service(port);
}

// Stores and responses take turns; if one has nothing that can go, the other goes on.
void Network::start_service(std::size_t port_idx) {
  Port& port = ports_[port_idx];
  const bool responses_first = port.responses_next && !port.responses.empty();
  Fifo<std::int32_t>& first = responses_first ? port.responses : port.stores;
  Fifo<std::int32_t>& second = responses_first ? port.stores : port.responses;
  if (serve_one_of(port_idx, first) || serve_one_of(port_idx, second)) {
    port.responses_next = !is_responder(stages_[static_cast<std::size_t>(port.stage)]);
  }
}

// Deficit round robin over the stages of one ring: each visit adds the stage's weight to its
// credit; with a segment's worth it is served. False if every destination is full.
bool Network::serve_one_of(std::size_t port_idx, Fifo<std::int32_t>& ring) {
  std::size_t num_refused = 0;
  while (num_refused < ring.size()) {
    const std::int32_t index = ring.front();
    Stage& stage = stages_[static_cast<std::size_t>(index)];
    const Message& message = stage.messages.front();
    const std::int64_t segment = std::min(message.to_drain - message.to_enter, segment_bytes_);
    ring.pop();
    if (contended_ingress_ &&
        ingresses_[static_cast<std::size_t>(message.destination)].reserved + segment >
            ingress_buffer_) {
      ring.push(index);
      ++num_refused;
      continue;
    }
    if (stage.credit < segment) stage.credit += stage.weight;
    if (stage.credit < segment) {
      ring.push(index);
      num_refused = 0;
      continue;
    }
    serve(port_idx, index, segment);
    return true;
  }
  return false;
}

void Network::serve(std::size_t port_idx, std::int32_t index, std::int64_t segment) {
  Port& port = ports_[port_idx];
  Stage& stage = stages_[static_cast<std::size_t>(index)];
  Message& message = stage.messages.front();
  if (contended_ingress_)
    ingresses_[static_cast<std::size_t>(message.destination)].reserved += segment;
  stage.credit -= segment;
  stage.queued = false;
  message.to_drain -= segment;
  port.busy = true;
  port.stage = index;
  port.segment = segment;
  port.destination = message.destination;
  port.message_ends = message.to_drain == 0;
  if (port.message_ends) {
    port.message = message;
    stage.messages.pop();
    --stage.entry;
  }
  const Picoseconds duration = port.rate.take(segment);
  port.statistics.busy += duration;
  events_.schedule(events_.now() + duration, EventKind::port_done,
                   static_cast<std::int32_t>(port_idx));
  make_drainable(index);  // the stage stays in the round while it holds more
}

void Network::finish_service(std::size_t port_idx) {
  Port& port = ports_[port_idx];
  Stage& stage = stages_[static_cast<std::size_t>(port.stage)];
  const std::int32_t index = port.stage;
  const Arrival arrival{port.segment, index, port.message_ends, port.message};
  const std::int32_t destination = port.destination;
  stage.held -= port.segment;
  under_way_[static_cast<std::size_t>(stage.gpu)] += port.segment;
  port.statistics.bytes += port.segment;
  account(port, -port.segment);
  if (!is_responder(stage)) port.store_backlog -= port.segment;
  port.busy = false;
  if (stage.blocked) enter(index);
  arrive(destination, arrival);
  if (!ports_[port_idx].busy) start_service(port_idx);
}

void Network::arrive(std::int32_t destination, const Arrival& arrival) {
  if (!contended_ingress_) {
    if (arrival.message_ends) deliver_later(arrival.source, arrival.message);
    return;
  }
  ingresses_[static_cast<std::size_t>(destination)].queue.push(arrival);
  start_ingress(destination);
}

void Network::start_ingress(std::int32_t gpu) {
  Ingress& ingress = ingresses_[static_cast<std::size_t>(gpu)];
  if (ingress.busy || ingress.queue.empty()) return;
  ingress.busy = true;
  events_.schedule(events_.now() + ingress.rate.take(ingress.queue.front().bytes),
                   EventKind::ingress_done, gpu);
}

void Network::finish_ingress(std::int32_t gpu) {
  Ingress& ingress = ingresses_[static_cast<std::size_t>(gpu)];
  const Arrival arrival = ingress.queue.front();
  ingress.queue.pop();
  ingress.busy = false;
  const bool was_full = ingress.reserved + segment_bytes_ > ingress_buffer_;
  ingress.reserved -= arrival.bytes;
  if (arrival.message_ends) deliver_later(arrival.source, arrival.message);
  start_ingress(gpu);
  if (!was_full) return;
  for (std::size_t p = 0; p < ports_.size(); ++p) {
    if (!ports_[p].busy) start_service(p);
  }
}

void Network::deliver_later(std::int32_t stage, const Message& message) {
  events_.schedule(events_.now() + latency_, EventKind::deliver, keep(stage, message));
}

std::int32_t Network::keep(std::int32_t stage, const Message& message) {
  if (free_deliveries_.empty()) {
    deliveries_.push_back({stage, message});
    return static_cast<std::int32_t>(deliveries_.size()) - 1;
  }
  const std::int32_t slot = free_deliveries_.back();
  free_deliveries_.pop_back();
  deliveries_[static_cast<std::size_t>(slot)] = {stage, message};
  return slot;
}

void Network::handle(const Event& event) {
  const auto target = static_cast<std::size_t>(event.target);
  switch (event.kind) {
    case EventKind::inject:
      enter(event.target);
      break;
    case EventKind::port_done:
      finish_service(target);
      break;
    case EventKind::ingress_done:
      finish_ingress(event.target);
      break;
    case EventKind::deliver: {
      const Delivery delivery = deliveries_[target];
      free_deliveries_.push_back(event.target);
      --num_messages_open_;
      const Stage& stage = stages_[static_cast<std::size_t>(delivery.stage)];
      under_way_[static_cast<std::size_t>(stage.gpu)] -= delivery.message.bytes;
      delivered_[static_cast<std::size_t>(stage.gpu)] += delivery.message.bytes;
      client_.on_visible(stage.gpu, stage.sm, delivery.message.destination, delivery.message.bytes,
                         delivery.message.tag);
      break;
    }
    case EventKind::pull_request: {
      const Delivery request = deliveries_[target];
      free_deliveries_.push_back(event.target);
      --num_messages_open_;
      append(request.stage, request.message.destination, request.message.bytes,
             request.message.tag);
      break;
    }
    default:
      break;
  }
}

void Network::account(Port& port, std::int64_t change) {
  const Picoseconds now = events_.now();
  port.statistics.backlog_byte_ps +=
      static_cast<double>(port.backlog) * static_cast<double>(now - port.changed);
  port.changed = now;
  port.backlog += change;
  port.statistics.peak_backlog = std::max(port.statistics.peak_backlog, port.backlog);
}

Picoseconds Network::fence_end(std::int32_t gpu) const {
  Picoseconds longest = 0;
  const std::size_t first = port_index(gpu, 0);
  const std::size_t count = direct_ ? num_gpus_ : 1;
  for (std::size_t p = first; p < first + count; ++p) {
    ExactRate rate = ports_[p].rate;
    longest = std::max(longest, rate.take(ports_[p].backlog));
  }
  return events_.now() + longest + latency_;
}

std::int64_t Network::store_backlog(std::int32_t gpu) const {
  std::int64_t largest = 0;
  const std::size_t first = port_index(gpu, 0);
  const std::size_t count = direct_ ? num_gpus_ : 1;
  for (std::size_t p = first; p < first + count; ++p) {
    largest = std::max(largest, ports_[p].store_backlog);
  }
  return largest;
}

Picoseconds Network::drain_time(std::int32_t gpu, std::int64_t spared) const {
  ExactRate rate = ports_[port_index(gpu, 0)].rate;
  return rate.take(std::max<std::int64_t>(0, store_backlog(gpu) - spared));
}

PortStatistics Network::statistics(std::int32_t gpu) const {
  PortStatistics sum;
  const std::size_t first = port_index(gpu, 0);
  const std::size_t count = direct_ ? num_gpus_ : 1;
  for (std::size_t p = first; p < first + count; ++p) {
    const PortStatistics& one = ports_[p].statistics;
    sum.bytes += one.bytes;
    sum.busy += one.busy;
    sum.peak_backlog += one.peak_backlog;
    sum.backlog_byte_ps += one.backlog_byte_ps;
  }
  return sum;
}

void Network::check_conservation() const {
  for (std::size_t gpu = 0; gpu < num_gpus_; ++gpu) {
    std::int64_t held = 0;
    std::int64_t waiting = 0;
    for (std::size_t i = gpu * stages_per_gpu_; i < (gpu + 1) * stages_per_gpu_; ++i) {
      const Stage& stage = stages_[i];
      if (stage.held < 0 || stage.held > stage.capacity || stage.waiting < 0) {
        throw std::logic_error("stage of GPU " + std::to_string(gpu) + ", SM " +
                               std::to_string(stage.sm) + " holds " + std::to_string(stage.held) +
                               " of " + std::to_string(stage.capacity));
      }
      held += stage.held;
      waiting += stage.waiting;
    }
    const std::int64_t sum = waiting + held + under_way_[gpu] + delivered_[gpu];
    if (sum != posted_[gpu]) {
      throw std::logic_error("GPU " + std::to_string(gpu) + " posted " +
                             std::to_string(posted_[gpu]) + " bytes, " + std::to_string(sum) +
                             " are accounted for");
    }
  }
}

}  // namespace xstage::sim

// Stores on their way: the stage of each SM, the egress port that drains all stages of a GPU, the
// ingress port of the destination. A message moves in segments:
//
//   post -> [waits for room] -> stage (q bytes, fills at the SM's pace) -> egress (R, shared by all
//   stages) -> switch -> ingress (R, shared by all senders) -> visible after the link's latency
//
// Nothing is lost or made: posted = waiting + staged + under way + delivered, for every GPU at
// every event (check_conservation). A stage never holds more than its capacity.
//
// Loads from a peer (pull) return through the egress port of the peer that owns the data, and so
// compete there with its stores. They wait in a responder, a stage without limit; while both have
// something to drain, stores and responses take turns.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/event_list.hpp"
#include "xstage/simulate.hpp"

namespace xstage::sim {

// Told about messages. `tag` is what post() was given.
class NetworkClient {
 public:
  virtual ~NetworkClient() = default;
  // All that this stage has been given has entered it: its sources may be reused.
  virtual void on_accepted(std::int32_t gpu, std::int32_t sm) = 0;
  // The bytes of one message are visible at their destination.
  virtual void on_visible(std::int32_t source_gpu, std::int32_t sm, std::int32_t destination,
                          std::int64_t bytes, std::int32_t tag) = 0;
};

struct PortStatistics {
  std::int64_t bytes = 0;
  Picoseconds busy = 0;
  std::int64_t peak_backlog = 0;  // posted and not yet drained, bytes
  double backlog_byte_ps = 0;     // integral, for the mean
};

class Network {
 public:
  Network(const SimMachine& machine, const SimOptions& options, EventList& events,
          NetworkClient& client);

  // Hands a message of `bytes` > 0 to the stage of one SM; messages of an SM leave in order. A
  // destination equal to `gpu` is not a message: the caller handles local stores.
  void post(std::int32_t gpu, std::int32_t sm, std::int32_t destination, std::int64_t bytes,
            std::int32_t tag);
  // Asks `owner` for `bytes`; on_visible arrives for `gpu` as destination when they are here.
  void pull(std::int32_t gpu, std::int32_t owner, std::int64_t bytes, std::int32_t tag);

  // Bytes given to the stage that have not entered it.
  [[nodiscard]] std::int64_t waiting_bytes(std::int32_t gpu, std::int32_t sm) const {
    return stages_[stage_index(gpu, sm)].waiting;
  }
  // When a system-scope fence that an SM of `gpu` starts now would end: it waits for all stores
  // that this GPU has given to its stages so far, of every SM. (Measured: after an aligned burst
  // all producers see visibility within 1 % of each other, though their stages accept at times 2x
  // apart.)
  [[nodiscard]] Picoseconds fence_end(std::int32_t gpu) const;
  // Stores given to the stages of `gpu` and not yet drained, and how long all but `spared` bytes of
  // them take to drain; of the busiest port if there are several.
  [[nodiscard]] std::int64_t store_backlog(std::int32_t gpu) const;
  [[nodiscard]] Picoseconds drain_time(std::int32_t gpu, std::int64_t spared) const;
  [[nodiscard]] bool quiescent() const { return num_messages_open_ == 0; }
  [[nodiscard]] PortStatistics statistics(std::int32_t gpu) const;
  // Throws std::logic_error naming what does not add up.
  void check_conservation() const;

  void handle(const Event& event);

 private:
  struct Message {
    std::int32_t destination = 0;
    std::int32_t tag = 0;
    std::int64_t bytes = 0;
    std::int64_t to_enter = 0;
    std::int64_t to_drain = 0;
    std::int64_t pace_bytes = 0;  // a segment enters every pace_ps at best
    Picoseconds issue = 0;        // T0 if it found the stage idle, bytes/r if not
  };
  struct Stage {
    std::int32_t gpu = 0;
    std::int32_t sm = 0;  // num_sms + p: responder to GPU p
    std::int64_t capacity = 0;
    std::int64_t held = 0;     // in the stage
    std::int64_t waiting = 0;  // posted, not in the stage
    std::int64_t weight = 0;   // bytes of credit a round of the port gives
    std::int64_t credit = 0;
    std::int32_t num_batches = 0;
    bool entering = false;  // an inject event is pending
    bool blocked = false;   // the next segment is ready and has no room
    bool queued = false;    // in the ring of a port
    std::size_t entry = 0;  // index in messages of the one that enters
    Fifo<Message> messages;
  };
  struct Port {
    ExactRate rate;
    bool busy = false;
    std::int32_t stage = 0;  // of the segment under way
    std::int64_t segment = 0;
    std::int32_t destination = 0;
    bool message_ends = false;
    Message message;            // the one the segment belongs to, if it ends
    Fifo<std::int32_t> stores;  // stages with something to drain, in turn
    Fifo<std::int32_t> responses;
    bool responses_next = false;
    PortStatistics statistics;
    std::int64_t backlog = 0;
    std::int64_t store_backlog = 0;  // the part of it that is stores
    Picoseconds changed = 0;
  };
  struct Arrival {
    std::int64_t bytes = 0;
    std::int32_t source = 0;  // stage
    bool message_ends = false;
    Message message;
  };
  struct Ingress {
    ExactRate rate;
    bool busy = false;
    std::int64_t reserved = 0;  // bytes in the buffer or on the way to it
    Fifo<Arrival> queue;
  };
  struct Delivery {
    std::int32_t stage = 0;
    Message message;
  };

  [[nodiscard]] std::size_t stage_index(std::int32_t gpu, std::int32_t sm) const {
    return static_cast<std::size_t>(gpu) * stages_per_gpu_ + static_cast<std::size_t>(sm);
  }
  [[nodiscard]] std::size_t port_index(std::int32_t gpu, std::int32_t destination) const {
    return direct_
               ? static_cast<std::size_t>(gpu) * num_gpus_ + static_cast<std::size_t>(destination)
               : static_cast<std::size_t>(gpu);
  }
  [[nodiscard]] bool is_responder(const Stage& stage) const {
    return static_cast<std::size_t>(stage.sm) >= num_sms_;
  }
  [[nodiscard]] Fifo<std::int32_t>& ring_of(Port& port, const Stage& stage) const {
    return is_responder(stage) ? port.responses : port.stores;
  }
  [[nodiscard]] std::int32_t keep(std::int32_t stage, const Message& message);
  [[nodiscard]] std::int64_t next_segment(const Message& message) const {
    return message.to_enter < segment_bytes_ ? message.to_enter : segment_bytes_;
  }
  void append(std::int32_t stage, std::int32_t destination, std::int64_t bytes, std::int32_t tag);
  void start_entering(std::int32_t stage);
  void enter(std::int32_t stage);
  void make_drainable(std::int32_t stage);
  void start_service(std::size_t port);
  bool serve_one_of(std::size_t port, Fifo<std::int32_t>& ring);
  void serve(std::size_t port, std::int32_t stage, std::int64_t segment);
  void finish_service(std::size_t port);
  void arrive(std::int32_t destination, const Arrival& arrival);
  void start_ingress(std::int32_t gpu);
  void finish_ingress(std::int32_t gpu);
  void deliver_later(std::int32_t stage, const Message& message);
  void account(Port& port, std::int64_t change);

  EventList& events_;
  NetworkClient& client_;
  LinkParams link_;
  std::size_t num_gpus_;
  std::size_t num_sms_;
  std::size_t stages_per_gpu_;
  bool direct_;
  bool contended_ingress_;
  std::int64_t segment_bytes_ = 0;
  std::int64_t ingress_buffer_ = 0;
  Picoseconds latency_ = 0;
  // Shares of the drain lie evenly between (1 - s) and (1 + s); the largest is one segment a round.
  // Each batch of an SM takes another one, so that no SM is slow for ever: measured shares differ
  // widely from burst to burst, and yet all SMs end together.
  std::vector<std::int64_t> weights_;
  std::vector<Stage> stages_;
  std::vector<Port> ports_;
  std::vector<Ingress> ingresses_;
  std::vector<Delivery> deliveries_;  // slots for messages that are on their last way
  std::vector<std::int32_t> free_deliveries_;
  std::vector<std::int64_t> posted_;     // per GPU, for conservation
  std::vector<std::int64_t> delivered_;  // by source
  std::vector<std::int64_t> under_way_;  // by source: left the stage, not visible
  std::int64_t num_messages_open_ = 0;
};

}  // namespace xstage::sim

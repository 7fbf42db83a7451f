// The SMs: main roles that run tasks, outboxes that send what they finish. One Worker per SM; its
// state is what the main role does.
//
//   fetch -> wait_data -> main loop -> wait_send (room in the outbox) -> epilogue -> publish
//         -> wait_send (if the main role sends itself, or waits for visibility) -> fetch
//
// The outbox sends chunks: all at once (burst), or one when the Pacer grants it at a step of the
// main loop (paced); what is left when the next tile wants the outbox is sent unpaced, as drain()
// does.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/event_list.hpp"
#include "simulate/network.hpp"
#include "xstage/simulate.hpp"

namespace xstage::sim {

class Machine : public NetworkClient {
 public:
  Machine(const SimMachine& machine, const SimSender& sender, SimProgram& program,
          const SimOptions& options);
  SimReport run();

  void on_accepted(std::int32_t gpu, std::int32_t sm) override;
  void on_visible(std::int32_t source_gpu, std::int32_t sm, std::int32_t destination,
                  std::int64_t bytes, std::int32_t tag) override;

 private:
  enum class State : std::uint8_t {
    fetch,
    wait_data,
    main,
    wait_outbox,
    epilogue,
    wait_sent,
    barrier,
    ended
  };

  struct Worker {
    explicit Worker(const Send& send) : pacer(send) {}
    std::int32_t gpu = 0;
    std::int32_t sm = 0;
    State state = State::fetch;
    Picoseconds since = 0;  // start of the state
    SimTask task;
    Pacer pacer;
    // Main loop.
    Picoseconds first_step = 0;  // when step 0 starts, pauses included
    Picoseconds step = 0;
    Picoseconds main_end = 0;
    std::int32_t steps_counted = 0;  // by the pacer
    bool step_pending = false;
    bool paused = false;          // loads are late, or
    bool paused_by_send = false;  // a chunk that the main role sends itself is on its way
    Picoseconds pause_start = 0;
    Picoseconds paused_total = 0;  // of this main loop
    // Loads: steps of earlier tasks, and when the data of the next few steps are here.
    std::int64_t steps_before = 0;
    Picoseconds data_ready[SimMachine::kMaxLoadDepth + 1] = {};
    Picoseconds last_data_ready = 0;
    // Outbox.
    Fifo<SimStore> pending;  // not yet given to the stage
    std::int64_t pending_bytes = 0;
    std::int64_t unseen_bytes = 0;  // given to the stage, not visible
    std::int64_t batch_bytes = 0;   // given since the stage last had accepted everything
    Picoseconds batch_start = 0;
  };

  struct Waiter {
    std::int32_t worker = 0;
    std::int32_t next = -1;
  };

  [[nodiscard]] std::int32_t index_of(std::int32_t gpu, std::int32_t sm) const {
    return gpu * setup_.num_sms + sm;
  }
  [[nodiscard]] std::int64_t waiting_bytes(const Worker& worker) const {
    return network_.waiting_bytes(worker.gpu, worker.sm);
  }
  [[nodiscard]] bool coupled() const { return sender_.send.completion == Completion::visible; }
  [[nodiscard]] bool paced() const { return sender_.send.steps_per_chunk > 0; }

  void validate() const;
  void fetch(std::int32_t index);
  void start_main(std::int32_t index);
  void end_main(std::int32_t index);
  void try_epilogue(std::int32_t index);
  void publish(std::int32_t index);
  void try_release(std::int32_t index);
  void at_step(std::int32_t index);
  void schedule_step(std::int32_t index);
  void count_skipped_steps(Worker& worker);
  void watch_loads(std::int32_t gpu);
  [[nodiscard]] bool loads_matter(const Worker& worker) const;
  void issue_load(Worker& worker);
  void await_data(std::int32_t index);
  void pause(Worker& worker, bool by_send);
  void resume(std::int32_t index);
  void pump(std::int32_t index, bool everything);
  void go_on(std::int32_t index);
  void at_fence(std::int32_t index);
  void send_chunk(Worker& worker);
  void raise_counter(std::int32_t gpu, std::int32_t counter);
  void arrive_at_barrier(std::int32_t index);
  void try_barrier();
  void open_barrier();
  void enter_state(Worker& worker, State state);
  void leave_state(Worker& worker);
  void count_computing(std::int32_t change);
  void record(const Worker& worker, SpanKind kind, Picoseconds start, Picoseconds end);
  void dispatch(const Event& event);
  SimReport report();

  SimMachine setup_;
  SimSender sender_;
  SimProgram& program_;
  SimOptions options_;
  EventList events_;
  Network network_;
  std::vector<Worker> workers_;
  std::int32_t num_counters_;
  std::vector<std::int32_t> counters_;      // [gpu][counter]
  std::vector<std::int32_t> first_waiter_;  // [gpu][counter], index in waiters_
  std::vector<Waiter> waiters_;
  std::vector<std::int32_t> free_waiters_;
  std::vector<SimPull> pulls_;
  std::int32_t num_ended_ = 0;
  std::int32_t num_at_barrier_ = 0;
  bool barrier_opening_ = false;
  std::int32_t num_computing_ = 0;
  Picoseconds computing_changed_ = 0;
  Picoseconds low_activity_ = 0;
  Picoseconds compute_end_ = 0;
  std::vector<Picoseconds> gpu_done_;
  std::int64_t load_bypass_ = 0;
  std::vector<char> loads_watched_;  // [gpu]: its stores are in the way of its loads
  SimReport out_;
};

}  // namespace xstage::sim

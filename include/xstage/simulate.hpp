// A discrete-event simulator of GPUs that compute tiles and store them into each other's memory.
// Integer picoseconds, no randomness, no globals: equal input gives equal output bit for bit.
//
// A machine is GPUs of SMs. Each SM has a main role, which takes tasks and runs their main loops,
// an outbox that sends finished tiles as `Send` and `Pacer` say, and a stage of q bytes between the
// outbox and the link. A program says which tasks there are. docs/simulating.md has the rules and
// their sources.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xstage/model.hpp"
#include "xstage/send.hpp"
#include "xstage/timeline.hpp"

namespace xstage {

enum class Fabric : std::uint8_t {
  switched,  // one egress and one ingress port a GPU
  direct,    // a link of its own between each two GPUs
};

struct SimMachine {
  static constexpr int kMaxGpus = 72;
  int num_gpus = 2;
  int num_sms = 132;
  LinkParams link;  // of a port, or of each link if direct
  Fabric fabric = Fabric::switched;
  double ingress_rate = 0;                     // B/ns; 0: as much as the link drains
  double ingress_buffer_bytes = 256.0 * 1024;  // what a switch accepts ahead of a busy ingress
  bool both_directions = false;                // R falls by both_directions_factor
  double barrier_ns = 3000;                    // of all GPUs, after the last arrival
  // Loads behind stores. The data of a step are loaded this many steps ahead, when a buffer comes
  // free; what the GPU's stores have in the way beyond link.load_bypass_bytes has to drain first.
  // 0, or a link without that number: loads are never late. At most kMaxLoadDepth.
  static constexpr int kMaxLoadDepth = 8;
  int load_depth_steps = 2;
  double load_ns = 1000;  // of a load that finds no stores
  // Late loads come up to this much earlier or later, evenly spread over SMs and steps. Without it
  // equal SMs would stay in lockstep for ever.
  double load_jitter_ns = 6000;
};

struct SimOptions {
  double segment_bytes = 2048;  // granularity of the link; rounded so that it divides the stage
  std::int64_t max_events = 400'000'000;
  bool keep_timeline = false;
  bool check_every_event = false;  // conservation; slow
};

// Who sends. A spare role leaves the main role free once the outbox has taken the tile; main roles
// that send themselves are held until the stage has taken it.
enum class SendOwner : std::uint8_t { spare_role, main_role };

struct SimSender {
  Send send;
  SendOwner owner = SendOwner::spare_role;
  std::int64_t outbox_bytes = 32 * 1024;
};

struct SimStore {
  std::int32_t destination = 0;
  std::int64_t bytes = 0;
};

struct SimTask {
  std::int32_t id = 0;
  double prologue_ns = 0;
  double step_ns = 0;
  std::int32_t num_steps = 0;
  double epilogue_ns = 0;
  // Counters of this GPU: the task starts when wait_counter >= wait_value; done_counter rises by
  // one when its result is in local memory. -1: none.
  std::int32_t wait_counter = -1;
  std::int32_t wait_value = 0;
  std::int32_t done_counter = -1;
  std::vector<SimStore> stores;  // to other GPUs; sent after the main loop
};

// Bytes that a GPU reads from another one; requested at its start, in this order.
struct SimPull {
  std::int32_t owner = 0;
  std::int64_t bytes = 0;
  std::int32_t counter = -1;  // rises by one on the reading GPU when they are here
};

enum class SimNext : std::uint8_t {
  task,
  barrier,  // of all SMs of all GPUs; everything sent before is visible after it
  end,
};

// What the machine runs. Called in simulated time order, so a program may hand out tasks
// dynamically.
class SimProgram {
 public:
  virtual ~SimProgram() = default;
  virtual SimNext next(int gpu, int sm, SimTask& task) = 0;
  [[nodiscard]] virtual int num_counters() const { return 0; }
  [[nodiscard]] virtual double start_ns(int /*gpu*/, int /*sm*/) const { return 0; }
  virtual std::vector<SimPull> pulls(int /*gpu*/) { return {}; }
  // The main role goes on after a task whose stores held it for held_ns.
  virtual void sent(int /*gpu*/, int /*sm*/, int /*task_id*/, double /*now_ns*/,
                    double /*held_ns*/) {}
};

// Times of the main roles, summed over all SMs.
struct RoleTimes {
  double compute_ns = 0;    // main loops and epilogues
  double wait_data_ns = 0;  // inputs not ready
  double wait_send_ns = 0;  // held by stores
  double wait_load_ns = 0;  // loads late behind stores
  double barrier_ns = 0;
  double idle_ns = 0;  // no work left
};

struct LinkUse {
  double bytes = 0;
  double busy_share = 0;          // of the whole run
  double peak_backlog_bytes = 0;  // given to the stages and not drained
  double mean_backlog_bytes = 0;
};

enum class Resource : std::uint8_t { tensor_cores, link, data, idle_sms };

struct SimReport {
  double total_ns = 0;        // until every GPU has ended and received everything
  double compute_end_ns = 0;  // end of the last main loop
  RoleTimes main;
  double issue_ns = 0;       // sum over messages: given to the stage -> accepted by it
  double issue_wait_ns = 0;  // part of it beyond the issue time into an empty stage
  std::vector<double> gpu_done_ns;
  std::vector<LinkUse> links;  // egress of each GPU
  Resource critical = Resource::tensor_cores;
  double low_activity_share = 0;  // of the run during which less than half of the SMs compute
  std::int64_t num_events = 0;
  std::int64_t num_tasks = 0;
  Timeline timeline;
};

[[nodiscard]] std::string_view to_string(Resource resource) noexcept;

// Throws Error(usage) on impossible machines or programs (also one in which nobody can go on), and
// Error(check_failed) when max_events is reached.
[[nodiscard]] SimReport simulate(const SimMachine& machine, const SimSender& sender,
                                 SimProgram& program, const SimOptions& options = {});

// The experiments of a probe: every SM of GPU 0 stores bursts into GPU 1 with a gap after each.
enum class BurstStart : std::uint8_t {
  aligned,    // all at one instant
  staggered,  // spread over one period: producers that have drifted apart
};

struct BurstTrace {
  std::vector<double> issue_ns;          // mean over producers, per burst
  std::vector<double> slowest_issue_ns;  // per burst
  double period_ns = 0;                  // of the last half of the bursts, mean over producers
  double steady_issue_ns = 0;            // the same
  double visible_ns = 0;  // of a single burst: slowest producer, from its start; else 0
  SimReport report;
};

[[nodiscard]] BurstTrace simulate_bursts(const SimMachine& machine, const Burst& burst,
                                         int num_bursts, BurstStart start,
                                         const SimOptions& options = {},
                                         Completion completion = Completion::read);

}  // namespace xstage

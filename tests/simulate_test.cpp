// The simulator against numbers derived by hand, conservation at every event, monotony,
// determinism.
#include "xstage/simulate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "simulate/event_list.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

// R = 400 B/ns, r = 50 B/ns, T0 = bytes / 50 exactly, capacity q per SM, all shares alike.
SimMachine machine(int num_sms, double capacity) {
  SimMachine m;
  m.num_sms = num_sms;
  m.link.issue_curve = {{5.0, 0.1}, {500'000.0, 10'000.0}};
  m.link.injection_rate = 50;
  m.link.drain_rate = 400;
  m.link.capacity_mean_bytes = capacity;
  m.link.visible_latency_ns = 1000;
  m.load_depth_steps = 0;
  return m;
}

SimOptions checked(double segment = 1000) {
  SimOptions o;
  o.segment_bytes = segment;
  o.check_every_event = true;
  return o;
}

// ---- clock and rates ----

TEST(EventList, OrdersByTimeThenByScheduling) {
  sim::EventList list;
  const int times[] = {5, 3, 5, 1, 3, 9, 1, 1, 7};
  for (int i = 0; i < 9; ++i) list.schedule(times[i], sim::EventKind::wake, i);
  const int expected[] = {3, 6, 7, 1, 4, 0, 2, 8, 5};
  for (const int target : expected) EXPECT_EQ(list.pop().target, target);
  EXPECT_TRUE(list.empty());
}

TEST(ExactRate, DoesNotDrift) {
  sim::ExactRate rate(372.3);
  sim::Picoseconds sum = 0;
  for (int i = 0; i < 1'000'000; ++i) sum += rate.take(1946);
  EXPECT_NEAR(static_cast<double>(sum), 1946e6 / 372.3 * 1000.0, 1.0);
}

// ---- exact values ----

// One producer, 10,000 B, capacity 20,000: no wait. T_iss = 10,000 / 50 = 200 ns. The port drains
// at 400 B/ns, faster than the SM feeds, so the last segment (1,000 B, in at 200 ns) has left at
// 202.5 ns and is visible 1,000 ns later.
TEST(Simulate, OneProducerIsHeldByItsOwnCeiling) {
  SimMachine m = machine(1, 20'000);
  const BurstTrace trace = simulate_bursts(m, {1, 10'000, 0}, 1, BurstStart::aligned, checked());
  EXPECT_DOUBLE_EQ(trace.issue_ns[0], 200.0);
  EXPECT_DOUBLE_EQ(trace.visible_ns, 1202.5);
}

// Isolated burst: 16 producers, B = 10,000, V = 160,000, q = 4,000 in segments of 1,000 B, 16 of
// them a round of 40 ns. The first segments enter at 20 ns, so segment s of producer p (from 0) is
// drained at 20 + 40 s + 2.5 (p + 1) ns. An SM has room for 4 segments, so its tenth and last
// enters when its sixth is drained: T_iss(p) = 20 + 200 + 2.5 (p + 1); mean 220 + 2.5 * 8.5 =
// 241.25, slowest 260. The law says (V - Q) / R = 96,000 / 400 = 240 plus the 20 ns before the
// drain starts: the slowest exactly. Last byte drained at 20 + 400, visible at 1,420.
TEST(Simulate, IsolatedBurstByHand) {
  const BurstTrace trace =
      simulate_bursts(machine(16, 4'000), {16, 10'000, 0}, 1, BurstStart::aligned, checked());
  EXPECT_DOUBLE_EQ(trace.slowest_issue_ns[0], 260.0);
  EXPECT_DOUBLE_EQ(trace.issue_ns[0], 241.25);
  EXPECT_DOUBLE_EQ(trace.visible_ns, 1420.0);
}

// Steady state of producers spread over a period: max(T0, V/R - G), period max(T0 + G, V/R). 16 x
// 10,000 B: V/R = 400 ns, T0 = 200 ns, G* = 200 ns. The stage lasts through the gap (q >= R/K * G),
// which the closed form takes for granted.
TEST(Simulate, SteadyStateIsTheClosedForm) {
  for (const double gap : {0.0, 50.0, 100.0, 150.0, 190.0, 200.0, 210.0, 300.0, 1000.0}) {
    const BurstTrace trace = simulate_bursts(machine(16, 8'000), {16, 10'000, gap}, 200,
                                             BurstStart::staggered, checked(100));
    const double expected = std::max(200.0, 400.0 - gap);
    const double period = std::max(200.0 + gap, 400.0);
    // A segment of 100 B takes 4 ns a round; the period is measured over 99 bursts.
    EXPECT_NEAR(trace.steady_issue_ns, expected, 4.5) << "gap " << gap;
    EXPECT_NEAR(trace.period_ns, period, 0.25) << "gap " << gap;
  }
}

// Both limits exactly: a long gap gives T0, no gap gives V/R, whatever the capacity.
TEST(Simulate, BothLimits) {
  for (const double capacity : {1'000.0, 4'000.0, 8'000.0}) {
    const BurstTrace free = simulate_bursts(machine(16, 30'000), {16, 10'000, 5'000}, 20,
                                            BurstStart::aligned, checked());
    EXPECT_DOUBLE_EQ(free.steady_issue_ns, 200.0);
    EXPECT_DOUBLE_EQ(free.period_ns, 5'200.0);
    const BurstTrace full = simulate_bursts(machine(16, capacity), {16, 10'000, 0}, 100,
                                            BurstStart::aligned, checked());
    EXPECT_DOUBLE_EQ(full.period_ns, 400.0) << capacity;
    EXPECT_DOUBLE_EQ(full.steady_issue_ns, 400.0) << capacity;
  }
}

// First stalled burst: V = 160,000 every T0 + G = 300 ns drains 120,000, so the backlog grows by
// 40,000 a burst. At the end of burst n (from 0), if nobody has waited, the backlog is n * 40,000 +
// V - R * T0 = n * 40,000 + 80,000. It exceeds Q = 16 * 12,600 = 201,600 first for n = 4 (240,000);
// burst 3 ends with 200,000.
TEST(Simulate, FirstStalledBurst) {
  const SimMachine m = machine(16, 12'600);
  const BurstTrace trace =
      simulate_bursts(m, {16, 10'000, 100}, 8, BurstStart::aligned, checked(100));
  const auto predicted = predict(m.link, {16, 10'000, 100}).first_stalled_burst_idx;
  ASSERT_TRUE(predicted.has_value());
  EXPECT_EQ(*predicted, 4);
  // The drain starts one segment late (2 ns), 800 B: burst 3 still fits (200,800), burst 4 does
  // not.
  for (int n = 0; n < 4; ++n)
    EXPECT_DOUBLE_EQ(trace.slowest_issue_ns[static_cast<std::size_t>(n)], 200.0) << n;
  EXPECT_GT(trace.slowest_issue_ns[4], 250.0);
}

// Coupled: whoever has been accepted waits until everything that its GPU had sent by then is
// visible. All 16 x 10,000 B have been given at once, so all wait for the same moment: 20 ns until
// the first segment is in, 400 ns of drain, 1,000 ns of latency; to the segment under way (2.5 ns).
TEST(Simulate, CoupledWaitsForTheDrainOfTheWholeGpu) {
  const BurstTrace trace = simulate_bursts(machine(16, 8'000), {16, 10'000, 500}, 10,
                                           BurstStart::aligned, checked(), Completion::visible);
  for (std::size_t n = 0; n < 10; ++n) {
    EXPECT_NEAR(trace.slowest_issue_ns[n], 1420.0, 2.6) << n;
    EXPECT_NEAR(trace.issue_ns[n], 1420.0, 2.6) << n;
  }
  EXPECT_NEAR(trace.period_ns, 1920.0, 2.6);
}

TEST(Simulate, AnUnboundedStageNeverHolds) {
  const BurstTrace trace = simulate_bursts(machine(16, std::numeric_limits<double>::infinity()),
                                           {16, 10'000, 0}, 50, BurstStart::aligned, checked());
  EXPECT_DOUBLE_EQ(trace.steady_issue_ns, 200.0);
  EXPECT_DOUBLE_EQ(trace.slowest_issue_ns.back(), 200.0);
}

// Unequal shares: with a spread of 0.4 producers end between about (V-Q)/R / 1.4 and later than all
// alike.
TEST(Simulate, UnequalSharesSpreadTheIssueTimes) {
  SimMachine m = machine(64, 4'000);
  const BurstTrace alike =
      simulate_bursts(m, {64, 20'000, 0}, 1, BurstStart::aligned, checked(500));
  m.link.share_spread = 0.4;
  const BurstTrace spread =
      simulate_bursts(m, {64, 20'000, 0}, 1, BurstStart::aligned, checked(500));
  EXPECT_LT(spread.issue_ns[0], alike.issue_ns[0]);
  EXPECT_GT(spread.slowest_issue_ns[0], alike.slowest_issue_ns[0]);
  EXPECT_NEAR(spread.visible_ns, alike.visible_ns, 20);  // the link works without pause either way
  const auto model = predict_isolated_producers(m.link, 64, 20'000);
  double mean = 0;
  for (const double t : model) mean += t / 64;
  EXPECT_NEAR(spread.issue_ns[0], mean, 0.03 * mean);
}

// ---- properties ----

TEST(Simulate, MonotoneInCapacityRateAndGap) {
  double before = std::numeric_limits<double>::infinity();
  for (const double capacity : {500.0, 1'000.0, 2'000.0, 4'000.0, 8'000.0, 16'000.0}) {
    const double now = simulate_bursts(machine(32, capacity), {32, 12'000, 0}, 1,
                                       BurstStart::aligned, checked(500))
                           .issue_ns[0];
    EXPECT_LE(now, before + 1e-9) << capacity;
    before = now;
  }
  before = std::numeric_limits<double>::infinity();
  for (const double rate : {100.0, 200.0, 400.0, 800.0, 1600.0}) {
    SimMachine m = machine(32, 4'000);
    m.link.drain_rate = rate;
    const double now =
        simulate_bursts(m, {32, 12'000, 100}, 40, BurstStart::staggered, checked(500))
            .steady_issue_ns;
    EXPECT_LE(now, before + 1e-9) << rate;
    before = now;
  }
  before = std::numeric_limits<double>::infinity();
  for (const double gap : {0.0, 100.0, 200.0, 400.0, 800.0, 1600.0}) {
    const double now = simulate_bursts(machine(32, 8'000), {32, 12'000, gap}, 40,
                                       BurstStart::staggered, checked(500))
                           .steady_issue_ns;
    EXPECT_LE(now, before + 1e-9) << gap;
    before = now;
  }
}

// ---- tasks ----

// A fixed list of tasks for each (gpu, sm).
class ListProgram : public SimProgram {
 public:
  ListProgram(int num_gpus, int num_sms, int num_counters)
      : tasks(static_cast<std::size_t>(num_gpus * num_sms)),
        pulls_of(static_cast<std::size_t>(num_gpus)),
        num_sms_(num_sms),
        num_counters_(num_counters),
        at_(tasks.size()) {}
  std::vector<SimTask>& of(int gpu, int sm) {
    return tasks[static_cast<std::size_t>(gpu * num_sms_ + sm)];
  }
  SimNext next(int gpu, int sm, SimTask& task) override {
    const auto worker = static_cast<std::size_t>(gpu * num_sms_ + sm);
    if (at_[worker] >= tasks[worker].size()) return SimNext::end;
    task = tasks[worker][at_[worker]++];
    return task.id < 0 ? SimNext::barrier : SimNext::task;
  }
  [[nodiscard]] int num_counters() const override { return num_counters_; }
  std::vector<SimPull> pulls(int gpu) override { return pulls_of[static_cast<std::size_t>(gpu)]; }

  std::vector<std::vector<SimTask>> tasks;
  std::vector<std::vector<SimPull>> pulls_of;

 private:
  int num_sms_;
  int num_counters_;
  std::vector<std::size_t> at_;
};

SimTask make_task(double step_ns, int num_steps) {
  SimTask task;
  task.step_ns = step_ns;
  task.num_steps = num_steps;
  return task;
}

// Two tasks on SM 0: 10 steps of 100 ns, 8,000 B to the peer each. Spare role, burst: tile 1
// computes while tile 0 is sent; both main loops end at 2,000; the last tile is issued in 160 ns
// (T0), its last segment of 1,000 B leaves 2.5 ns later, 1,000 ns to visibility: 3,162.5.
TEST(Simulate, SpareRoleSendsBesideTheNextTile) {
  ListProgram program(2, 1, 0);
  SimTask task = make_task(100, 10);
  task.stores = {{1, 8'000}};
  program.of(0, 0) = {task, task};
  SimSender sender;
  sender.send.chunk_bytes = 0;
  const SimReport report = simulate(machine(1, 8'000), sender, program, checked());
  EXPECT_DOUBLE_EQ(report.compute_end_ns, 2000.0);
  EXPECT_DOUBLE_EQ(report.total_ns, 3162.5);
  EXPECT_DOUBLE_EQ(report.main.wait_send_ns, 0.0);
  EXPECT_DOUBLE_EQ(report.links[0].bytes, 16'000.0);
}

// The same with the main role as sender: each tile holds it for T0 = 160 ns.
TEST(Simulate, MainRoleIsHeldByItsStores) {
  ListProgram program(2, 1, 0);
  SimTask task = make_task(100, 10);
  task.stores = {{1, 8'000}};
  program.of(0, 0) = {task, task};
  SimSender sender;
  sender.owner = SendOwner::main_role;
  sender.send.chunk_bytes = 0;
  const SimReport report = simulate(machine(1, 8'000), sender, program, checked());
  EXPECT_DOUBLE_EQ(report.compute_end_ns, 2160.0);
  EXPECT_DOUBLE_EQ(report.main.wait_send_ns, 320.0);
}

// Paced: chunks of 2,000 B, one every 3 steps. The first leaves when the tile is done (credit is
// full), the others at steps 3, 6, 9 of the next tile. A chunk takes 40 ns to issue. The last
// tile's chunks leave at once at its end: the first with a full credit (9 -> 10 is one step after
// the last grant, so not) -- nothing is left to pace them, drain() sends all four: 160 ns.
TEST(Simulate, PacedChunksFollowThePacer) {
  ListProgram program(2, 1, 0);
  SimTask task = make_task(100, 10);
  task.stores = {{1, 8'000}};
  program.of(0, 0) = {task, task};
  SimSender sender;
  sender.send.chunk_bytes = 2'000;
  sender.send.steps_per_chunk = 3;
  SimOptions options = checked();
  options.keep_timeline = true;
  const SimReport report = simulate(machine(1, 8'000), sender, program, options);
  std::vector<double> starts;
  for (const Span& span : report.timeline.spans) {
    if (span.kind == SpanKind::issue) starts.push_back(span.start_ns);
  }
  EXPECT_EQ(starts, (std::vector<double>{1000, 1300, 1600, 1900, 2000}));
  EXPECT_DOUBLE_EQ(report.total_ns, 3162.5);
}

// The outbox holds one tile; at 10 B/ns a tile of 8,000 B needs 800 ns, a main loop 100 ns. Stage
// 1,000 B: tile 0 enters by 720 ns after the drain starts. Tile 1 must wait for that.
TEST(Simulate, AFullOutboxHoldsTheMainRole) {
  ListProgram program(2, 1, 0);
  SimTask task = make_task(100, 1);
  task.stores = {{1, 8'000}};
  program.of(0, 0) = {task, task};
  SimMachine m = machine(1, 1'000);
  m.link.drain_rate = 10;
  SimSender sender;
  sender.send.chunk_bytes = 0;
  sender.outbox_bytes = 8'000;
  const SimReport report = simulate(m, sender, program, checked());
  // Tile 0 is given at 100; segment 1 is in at 120 and drained at 220, when segment 2 enters;
  // segment 8 enters at 820. Tile 1 was ready at 200: held for 620 ns.
  EXPECT_DOUBLE_EQ(report.main.wait_send_ns, 620.0);
}

// Loads behind stores: as above with an outbox of two tiles and a main loop of 20 steps of 50 ns.
// Tile 0 is given at 1,000 and drained at 1,820 (20 ns until a segment is in). With two buffers the
// load at 1,000 is the first one behind it; with bytes b past which loads go freely, it comes
// (8,000
// - b) / 10 ns later, at 1,800 if b is 0. The loop needs it when the step that runs meanwhile ends,
// at 1,050, and stops for 750 - b / 10 ns. The load that is issued at 1,050 comes at 1,800, too,
// before it is needed.
double late_loads_ns(double bypass_bytes) {
  ListProgram program(2, 1, 0);
  SimTask task = make_task(50, 20);
  task.stores = {{1, 8'000}};
  SimTask last = make_task(50, 20);
  program.of(0, 0) = {task, last};
  SimMachine m = machine(1, 1'000);
  m.link.drain_rate = 10;
  m.link.load_bypass_bytes = bypass_bytes;
  m.load_depth_steps = 2;
  m.load_ns = 0;
  m.load_jitter_ns = 0;
  SimSender sender;
  sender.send.chunk_bytes = 0;
  const SimReport report = simulate(m, sender, program, checked());
  EXPECT_DOUBLE_EQ(report.main.compute_ns, 2000.0);
  EXPECT_DOUBLE_EQ(report.compute_end_ns, 2000.0 + report.main.wait_load_ns);
  return report.main.wait_load_ns;
}

TEST(Simulate, LoadsWaitBehindStores) {
  EXPECT_DOUBLE_EQ(late_loads_ns(0), 750.0);
  EXPECT_DOUBLE_EQ(late_loads_ns(3'000), 450.0);
  EXPECT_DOUBLE_EQ(late_loads_ns(8'000), 0.0);
}

// A task waits for a counter that two others raise at 300 and 500 ns.
TEST(Simulate, ReadinessBetweenTasks) {
  ListProgram program(1, 3, 1);
  SimTask one = make_task(300, 1);
  one.done_counter = 0;
  SimTask two = make_task(500, 1);
  two.done_counter = 0;
  SimTask after = make_task(100, 1);
  after.wait_counter = 0;
  after.wait_value = 2;
  program.of(0, 0) = {one};
  program.of(0, 1) = {two};
  program.of(0, 2) = {after};
  SimMachine m = machine(3, 8'000);
  m.num_gpus = 1;
  const SimReport report = simulate(m, {}, program, checked());
  EXPECT_DOUBLE_EQ(report.total_ns, 600.0);
  EXPECT_DOUBLE_EQ(report.main.wait_data_ns, 500.0);
}

// A barrier opens when every store before it is visible: tile done at 100, issued by 260, drained
// by 262.5, visible at 1,262.5, barrier 3,000, then 50 ns of work.
TEST(Simulate, BarrierWaitsForVisibility) {
  ListProgram program(2, 1, 0);
  SimTask task = make_task(100, 1);
  task.stores = {{1, 8'000}};
  SimTask barrier;
  barrier.id = -1;
  program.of(0, 0) = {task, barrier, make_task(50, 1)};
  program.of(1, 0) = {barrier, make_task(50, 1)};
  SimSender sender;
  sender.send.chunk_bytes = 0;
  EXPECT_DOUBLE_EQ(simulate(machine(1, 8'000), sender, program, checked()).total_ns, 4312.5);
}

// A pull returns through the owner's egress: request 500 ns, 40,000 B at 400 B/ns = 100 ns, latency
// 1,000 ns. Beside stores that keep that port busy it gets every second turn: 200 ns.
TEST(Simulate, PullSharesTheOwnersEgress) {
  ListProgram alone(2, 16, 0);
  alone.pulls_of[1] = {{0, 40'000, -1}};
  EXPECT_DOUBLE_EQ(simulate(machine(16, 8'000), {}, alone, checked()).total_ns, 1600.0);
  ListProgram beside(2, 16, 1);
  beside.pulls_of[1] = {{0, 40'000, 0}};
  SimTask store = make_task(1, 400);
  store.stores = {{1, 20'000}};
  for (int sm = 0; sm < 16; ++sm) beside.of(0, sm) = {store};
  SimTask wait = make_task(0, 0);
  wait.wait_counter = 0;
  wait.wait_value = 1;
  beside.of(1, 0) = {wait};
  SimSender sender;
  sender.send.chunk_bytes = 0;
  // Stores run from 420 to 1,220 and beyond; the pull arrives at 500 and gets half of the port.
  EXPECT_NEAR(simulate(machine(16, 8'000), sender, beside, checked()).main.wait_data_ns, 1700.0,
              5.0);
}

// Fan-in through a switch: seven GPUs send 16 x 10,000 B each to one. Its ingress takes R, so the
// last byte is through after 7 * 160,000 / 400 = 2,800 ns and the first segment's way. With direct
// links each has its own 400 B/ns: 400 ns.
TEST(Simulate, FanInThroughASwitchAndDirect) {
  for (const Fabric fabric : {Fabric::switched, Fabric::direct}) {
    ListProgram program(8, 16, 0);
    SimTask task = make_task(0, 0);
    task.stores = {{0, 10'000}};
    for (int gpu = 1; gpu < 8; ++gpu) {
      for (int sm = 0; sm < 16; ++sm) program.of(gpu, sm) = {task};
    }
    SimMachine m = machine(16, 4'000);
    m.num_gpus = 8;
    m.fabric = fabric;
    m.ingress_buffer_bytes = 16'000;
    SimSender sender;
    sender.send.chunk_bytes = 0;
    const SimReport report = simulate(m, sender, program, checked());
    const double expected = fabric == Fabric::switched ? 1022.5 + 2800.0 : 1020.0 + 400.0;
    EXPECT_DOUBLE_EQ(report.total_ns, expected);
  }
}

TEST(Simulate, EqualInputGivesEqualOutput) {
  const auto run = [] {
    SimMachine m = machine(32, 4'000);
    m.link.share_spread = 0.3;
    SimOptions options;
    options.keep_timeline = true;
    return simulate_bursts(m, {32, 12'345, 77}, 50, BurstStart::staggered, options);
  };
  const BurstTrace a = run();
  const BurstTrace b = run();
  EXPECT_EQ(a.issue_ns, b.issue_ns);
  EXPECT_EQ(a.report.num_events, b.report.num_events);
  ASSERT_EQ(a.report.timeline.spans.size(), b.report.timeline.spans.size());
  for (std::size_t i = 0; i < a.report.timeline.spans.size(); ++i) {
    EXPECT_EQ(a.report.timeline.spans[i].start_ns, b.report.timeline.spans[i].start_ns);
    EXPECT_EQ(a.report.timeline.spans[i].end_ns, b.report.timeline.spans[i].end_ns);
  }
}

// ---- what cannot be ----

template <class Call>
ErrorCategory category_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.category();
  }
  return static_cast<ErrorCategory>(0);
}

TEST(Simulate, RefusesImpossibleMachines) {
  const auto run = [](SimMachine m, SimOptions options = {}) {
    return category_of([&] {
      (void)simulate_bursts(m, {1, 1'000, 0}, 2, BurstStart::aligned, options);
    });
  };
  EXPECT_EQ(run(machine(1, 8'000)), static_cast<ErrorCategory>(0));
  SimMachine m = machine(1, 8'000);
  m.num_gpus = 73;
  EXPECT_EQ(run(m), ErrorCategory::usage);
  m = machine(1, 8'000);
  m.link.drain_rate = -1;
  EXPECT_EQ(run(m), ErrorCategory::usage);
  m = machine(1, 8'000);
  m.link.drain_rate = std::nan("");
  EXPECT_EQ(run(m), ErrorCategory::usage);
  m = machine(1, 8'000);
  m.link.capacity_mean_bytes.reset();
  EXPECT_EQ(run(m), ErrorCategory::usage);
  m = machine(1, 8'000);
  m.num_sms = 0;
  EXPECT_EQ(run(m), ErrorCategory::usage);
}

TEST(Simulate, RefusesImpossibleBursts) {
  for (const double bytes : {0.0, -5.0, std::nan(""), 1e12}) {
    EXPECT_EQ(category_of([&] {
                (void)simulate_bursts(machine(1, 8'000), {1, bytes, 0}, 2, BurstStart::aligned);
              }),
              ErrorCategory::usage)
        << bytes;
  }
}

TEST(Simulate, SaysWhenItReachesItsLimit) {
  SimOptions options;
  options.max_events = 100;
  try {
    (void)simulate_bursts(machine(16, 8'000), {16, 10'000, 0}, 100, BurstStart::aligned, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::check_failed);
    EXPECT_NE(std::string(error.what()).find("100 events"), std::string::npos);
  }
}

TEST(Simulate, SaysWhenNobodyCanGoOn) {
  ListProgram program(1, 1, 1);
  SimTask task = make_task(1, 1);
  task.wait_counter = 0;
  task.wait_value = 1;
  program.of(0, 0) = {task};
  SimMachine m = machine(1, 8'000);
  m.num_gpus = 1;
  EXPECT_EQ(category_of([&] { (void)simulate(m, {}, program, {}); }), ErrorCategory::usage);
}

}  // namespace
}  // namespace xstage

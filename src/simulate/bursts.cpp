// The probe's experiments as a program of the simulator.
#include <algorithm>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/simulate.hpp"

namespace xstage {
namespace {

class BurstProgram : public SimProgram {
 public:
  BurstProgram(const SimMachine& machine, const Burst& burst, int num_bursts, BurstStart start)
      : burst_(burst), num_bursts_(num_bursts), done_(static_cast<std::size_t>(machine.num_sms)) {
    const double period = predict(machine.link, burst).period_ns;
    if (start == BurstStart::staggered) spacing_ns_ = period / burst.num_producers;
    issue_ns.resize(static_cast<std::size_t>(num_bursts));
    for (auto& of_burst : issue_ns) of_burst.reserve(static_cast<std::size_t>(burst.num_producers));
    end_ns.resize(static_cast<std::size_t>(machine.num_sms));
  }

  SimNext next(int gpu, int sm, SimTask& task) override {
    int& done = done_[static_cast<std::size_t>(sm)];
    if (gpu != 0 || sm >= burst_.num_producers || done >= num_bursts_) return SimNext::end;
    task.id = done;
    task.prologue_ns = done == 0 ? 0 : burst_.gap_ns;
    task.stores.push_back({1, static_cast<std::int64_t>(burst_.bytes)});
    ++done;
    return SimNext::task;
  }

  [[nodiscard]] double start_ns(int /*gpu*/, int sm) const override { return sm * spacing_ns_; }

  void sent(int /*gpu*/, int sm, int task_id, double now_ns, double held_ns) override {
    issue_ns[static_cast<std::size_t>(task_id)].push_back(held_ns);
    end_ns[static_cast<std::size_t>(sm)].push_back(now_ns);
  }

  std::vector<std::vector<double>> issue_ns;  // [burst][arrival]
  std::vector<std::vector<double>> end_ns;    // [sm][burst]

 private:
  Burst burst_;
  int num_bursts_;
  double spacing_ns_ = 0;
  std::vector<int> done_;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

}  // namespace

BurstTrace simulate_bursts(const SimMachine& machine, const Burst& burst, int num_bursts,
                           BurstStart start, const SimOptions& options, Completion completion) {
  if (num_bursts < 1) throw Error(ErrorCategory::usage, "bursts: at least one");
  if (burst.num_producers > machine.num_sms) {
    throw Error(ErrorCategory::usage, "producers " + std::to_string(burst.num_producers) +
                                          ": legal 1.." + std::to_string(machine.num_sms));
  }
  if (machine.num_gpus < 2) throw Error(ErrorCategory::usage, "bursts need two GPUs");
  if (!(burst.bytes >= 1) || burst.bytes > 268'435'456.0)
    throw Error(ErrorCategory::usage, "bytes of a burst: legal 1..268435456");
  BurstProgram program(machine, burst, num_bursts, start);
  SimSender sender;
  sender.owner = SendOwner::main_role;
  sender.send.kind = machine.link.kind;
  sender.send.chunk_bytes = 0;
  sender.send.completion = completion;
  BurstTrace trace;
  trace.report = simulate(machine, sender, program, options);
  for (const auto& of_burst : program.issue_ns) {
    trace.issue_ns.push_back(mean(of_burst));
    trace.slowest_issue_ns.push_back(
        of_burst.empty() ? 0 : *std::max_element(of_burst.begin(), of_burst.end()));
  }
  const std::size_t first = static_cast<std::size_t>(num_bursts) / 2;
  const std::size_t last = static_cast<std::size_t>(num_bursts) - 1;
  std::vector<double> periods;
  for (int sm = 0; sm < burst.num_producers && last > first; ++sm) {
    const auto& ends = program.end_ns[static_cast<std::size_t>(sm)];
    periods.push_back((ends[last] - ends[first]) / static_cast<double>(last - first));
  }
  trace.period_ns = mean(periods);
  trace.steady_issue_ns = mean(std::vector<double>(
      trace.issue_ns.begin() + static_cast<std::ptrdiff_t>(first), trace.issue_ns.end()));
  if (num_bursts == 1) trace.visible_ns = trace.report.total_ns;
  return trace;
}

}  // namespace xstage

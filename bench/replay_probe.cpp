// Replays the experiments of a sample file in the simulator and compares: |T_iss simulated -
// measured| / period measured (isolated bursts: / time to visibility). Writes one row per sample as
// CSV.
//
//   replay_probe profiles/h200-nv18.csv > bench/results/simulator_replay.csv
//
// The link is fitted from the same file without its held-out points; the last lines (to stderr and
// as comments) are median and p95, of all points and of the held-out ones.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "model/points.hpp"
#include "xstage/files.hpp"
#include "xstage/fit.hpp"
#include "xstage/simulate.hpp"

namespace {

using namespace xstage;

struct Judged {
  double issue_error = 0;
  double period_error = 0;
  bool held_out = false;
  bool periodic = false;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

void summarise(const char* what, const std::vector<Judged>& all, bool held_out_only,
               bool periodic_only) {
  std::vector<double> issue;
  std::vector<double> period;
  for (const Judged& one : all) {
    if ((held_out_only && !one.held_out) || (periodic_only && !one.periodic)) continue;
    issue.push_back(one.issue_error);
    if (one.periodic) period.push_back(one.period_error);
  }
  std::printf(
      "# %s: %zu points, error/period median %.2f %% p95 %.2f %%, period error median %.2f %% p95 "
      "%.2f %%\n",
      what, issue.size(), 100 * quantile(issue, 0.5), 100 * quantile(issue, 0.95),
      100 * quantile(period, 0.5), 100 * quantile(period, 0.95));
}

int run(const char* path) {
  const SampleFile file = read_samples(path);
  const Fit link = fit(file.samples);
  std::map<StoreKind, const LinkParams*> params;
  std::map<StoreKind, double> rate;
  for (const KindFit& kind : link.kinds) {
    params[kind.params.kind] = &kind.params;
    rate[kind.params.kind] = rough_drain_rate(file.samples, kind.params.kind);
  }
  std::printf("# replay of %s (sha256 %s) in the simulator\n", path, file.hash.c_str());
  std::printf(
      "experiment,kind,producers,bytes,gap_ns,directions,held_out,issue_measured_ns,issue_"
      "simulated_ns,"
      "period_measured_ns,period_simulated_ns,error_over_period\n");
  std::vector<Judged> all;
  for (const model::Point& point : model::collect_points(file.samples)) {
    const bool periodic = point.experiment == Experiment::periodic;
    const double scale = periodic ? point.period_ns : point.visible_ns;
    if (!params.contains(point.kind) || !measured(point.issue_ns) || !measured(scale)) continue;
    const LinkParams& link_params = *params[point.kind];
    if (!link_params.capacity_mean_bytes) continue;
    SimMachine machine;
    machine.num_sms = point.num_producers;
    machine.link = link_params;
    machine.both_directions = point.num_directions == 2;
    machine.load_depth_steps = 0;
    SimOptions options;
    options.segment_bytes = 1024;
    // All time of a period in which the producer does not issue.
    const double gap = periodic ? point.period_ns - point.issue_ns : 0;
    const BurstTrace trace =
        simulate_bursts(machine, {point.num_producers, point.bytes, gap}, periodic ? 120 : 1,
                        periodic ? BurstStart::staggered : BurstStart::aligned, options);
    const double issue = periodic ? trace.steady_issue_ns : trace.issue_ns[0];
    Judged one;
    one.periodic = periodic;
    one.held_out = model::is_held_out(point, rate[point.kind]);
    one.issue_error = std::abs(issue - point.issue_ns) / scale;
    one.period_error = periodic ? std::abs(trace.period_ns - scale) / scale : 0;
    all.push_back(one);
    std::printf("%s,%s,%d,%.0f,%.0f,%d,%d,%.1f,%.1f,%.1f,%.1f,%.4f\n",
                std::string(to_string(point.experiment)).c_str(),
                std::string(to_string(point.kind)).c_str(), point.num_producers, point.bytes, gap,
                point.num_directions, one.held_out ? 1 : 0, point.issue_ns, issue, scale,
                periodic ? trace.period_ns : trace.visible_ns, one.issue_error);
  }
  summarise("all", all, false, false);
  summarise("periodic", all, false, true);
  summarise("held out", all, true, false);
  summarise("held out, periodic", all, true, true);
  return all.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: replay_probe SAMPLES.csv\n");
    return 2;
  }
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay_probe: error: %s\n", error.what());
    return 6;
  }
}

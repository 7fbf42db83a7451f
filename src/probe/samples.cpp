// From clock readings to samples.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "probe/experiments.hpp"

namespace xstage::probing {
namespace {

constexpr int kNumWindows = 9;

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(at))];
}

// Calls visit(burst, producer) for every burst that starts in the window and is not the last one.
template <typename Visit>
void for_bursts_in(const BurstRun& run, const SteadyWindow& window, Visit visit) {
  for (int p = 0; p < run.num_producers; ++p) {
    for (int burst = 0; burst + 1 < run.num_bursts; ++burst) {
      const double start = run.at(burst, p).start_ns;
      if (start >= window.begin_ns && start < window.end_ns) visit(burst, p);
    }
  }
}

Sample sample_of(const BurstSpec& spec, Experiment experiment) {
  Sample sample;
  sample.experiment = experiment;
  sample.kind = spec.kind;
  sample.num_producers = spec.num_producers;
  sample.bytes = spec.bytes;
  return sample;
}

}  // namespace

void append_isolated(const BurstRun& run, const BurstSpec& spec, int first_round,
                     std::vector<Sample>& samples) {
  for (int round = first_round; round < run.num_bursts; ++round) {
    std::vector<double> issue, accept, visible;
    for (int p = 0; p < run.num_producers; ++p) {
      const BurstTimes& times = run.at(round, p);
      issue.push_back(times.read_ns);
      accept.push_back(times.accept_ns);
      visible.push_back(times.visible_ns);
    }
    Sample sample = sample_of(spec, Experiment::isolated);
    sample.issue_ns = mean_of(issue);
    sample.issue_p10_ns = quantile(issue, 0.1);
    sample.issue_p90_ns = quantile(issue, 0.9);
    sample.issue_slowest_ns = quantile(issue, 1.0);
    sample.accept_ns = mean_of(accept);
    if (spec.measure_visible) {
      sample.visible_ns = mean_of(visible);
      sample.visible_slowest_ns = quantile(visible, 1.0);
    }
    sample.round_idx = round - first_round;
    samples.push_back(sample);
  }
}

SteadyWindow steady_window(const BurstRun& run) {
  double end = 1e300;
  for (int p = 0; p < run.num_producers; ++p) {
    end = std::min(end, static_cast<double>(run.at(run.num_bursts - 1, p).start_ns));
  }
  return {end / 3, end};
}

void append_periodic(const BurstRun& run, const BurstSpec& spec, double nominal_gap_ns,
                     std::vector<Sample>& samples) {
  const SteadyWindow steady = steady_window(run);
  for (int w = 0; w < kNumWindows; ++w) {
    const double width = (steady.end_ns - steady.begin_ns) / kNumWindows;
    const SteadyWindow window{steady.begin_ns + w * width, steady.begin_ns + (w + 1) * width};
    std::vector<double> issue, accept, period;
    for_bursts_in(run, window, [&](int burst, int p) {
      issue.push_back(run.at(burst, p).read_ns);
      accept.push_back(run.at(burst, p).accept_ns);
      period.push_back(static_cast<double>(run.at(burst + 1, p).start_ns) -
                       run.at(burst, p).start_ns);
    });
    if (issue.empty()) continue;
    Sample sample = sample_of(spec, Experiment::periodic);
    sample.nominal_gap_ns = nominal_gap_ns;
    sample.issue_ns = mean_of(issue);
    sample.issue_p10_ns = quantile(issue, 0.1);
    sample.issue_p90_ns = quantile(issue, 0.9);
    sample.issue_slowest_ns = quantile(issue, 1.0);
    sample.accept_ns = mean_of(accept);
    sample.period_ns = mean_of(period);
    sample.gap_ns = sample.period_ns - sample.issue_ns;
    if (spec.gap_steps > 0) sample.compute_gap_ns = sample.gap_ns;
    sample.round_idx = w;
    samples.push_back(sample);
  }
}

bool Context::measures(StoreKind kind) const {
  if (kind == StoreKind::bulk || kind == StoreKind::tensor || kind == StoreKind::bulk_reduce) {
    if (!link.has_copy_engine_stores()) return false;
  }
  return options.kinds.empty() ||
         std::find(options.kinds.begin(), options.kinds.end(), kind) != options.kinds.end();
}

std::uint32_t piece_bytes(StoreKind kind, std::uint32_t bytes) {
  constexpr std::uint32_t kLargest = 16 * 1024;
  switch (kind) {
    case StoreKind::bulk:
    case StoreKind::bulk_reduce:
      return std::min(bytes, kLargest);
    case StoreKind::tensor: {
      std::uint32_t piece = kLargest;  // whole boxes only
      while (bytes % piece != 0) piece /= 2;
      return piece;
    }
    default:
      return 0;  // register kinds: the whole burst at once
  }
}

BurstSpec burst_of(Context& context, StoreKind kind, int num_producers, double bytes) {
  BurstSpec spec;
  spec.kind = kind;
  spec.bytes = static_cast<std::uint32_t>(bytes);
  spec.num_producers = num_producers;
  spec.send.kind = kind;
  spec.send.chunk_bytes = piece_bytes(kind, spec.bytes);
  spec.seed = context.next_seed();
  return spec;
}

BurstRun run_checked(Context& context, const BurstSpec& spec) {
  BurstRun run = context.link.run(spec);
  if (run.num_wrong_words != 0) {
    throw Error(ErrorCategory::check_failed,
                std::string(to_string(spec.kind)) + ", K=" + std::to_string(spec.num_producers) +
                    ", " + std::to_string(spec.bytes) +
                    " bytes: " + std::to_string(run.num_wrong_words) + " of " +
                    std::to_string(run.num_checked_words) + " words at the destination are wrong");
  }
  return run;
}

double zero_gap_rate(Context& context, StoreKind kind, int num_producers, double bytes,
                     const Layout& layout) {
  BurstSpec spec = burst_of(context, kind, num_producers, bytes);
  spec.layout = layout;
  spec.num_bursts = 48;
  const BurstRun run = run_checked(context, spec);
  const SteadyWindow window = steady_window(run);
  double period = 0;
  double count = 0;
  for_bursts_in(run, window, [&](int burst, int p) {
    period += static_cast<double>(run.at(burst + 1, p).start_ns) - run.at(burst, p).start_ns;
    count += 1;
  });
  return static_cast<double>(spec.bytes) * num_producers / (period / count);
}

}  // namespace xstage::probing

// The parts that feed the fit: canary, rate, isolated and periodic bursts, both directions.
#include <cmath>

#include "probe/experiments.hpp"
#include "xstage/grid.hpp"

namespace xstage::probing {
namespace {

constexpr int kWarmRounds = 4;
constexpr int kMaxRepeats = 4;
constexpr double kNoiseLimit = 0.01;  // standard error of the mean of rounds, relative

const StoreKind kModelKinds[] = {StoreKind::register16, StoreKind::bulk, StoreKind::tensor};

std::vector<double> bytes_or(const ProbeOptions& options, const std::vector<double>& fallback) {
  return options.bytes.empty() ? fallback : options.bytes;
}

std::vector<GridPoint> grid_of(const Context& context, Experiment experiment) {
  const ProbeOptions& options = context.options;
  std::vector<GridPoint> points;
  const int all = context.link.num_sms();
  if (options.quick) {
    if (experiment == Experiment::isolated) {
      for (const int k : {1, all}) {
        for (const double kib : {4, 8, 16, 24, 32, 64}) {
          points.push_back({experiment, k, kib * kKib, 0, false});
        }
      }
    } else {
      for (const double share : {0.0, 0.3, 2.0}) {
        points.push_back(
            {experiment, all, 32 * kKib, share * 32 * kKib * all / context.drain_rate, false});
      }
    }
    return points;
  }
  for (const GridPoint& point : measuring_grid(all, context.drain_rate)) {
    if (point.experiment == experiment) points.push_back(point);
  }
  // Axes that the caller gave replace the grid's.
  if (!options.producers.empty() || !options.bytes.empty() || !options.gaps_ns.empty()) {
    std::vector<GridPoint> chosen;
    const auto producers = options.producers.empty() ? std::vector<int>{1, all} : options.producers;
    const auto gaps = options.gaps_ns.empty() || experiment == Experiment::isolated
                          ? std::vector<double>{0.0}
                          : options.gaps_ns;
    for (const int k : producers) {
      for (const double bytes : bytes_or(options, {8 * kKib, 16 * kKib, 32 * kKib, 64 * kKib})) {
        for (const double gap : gaps) chosen.push_back({experiment, k, bytes, gap, false});
      }
    }
    return chosen;
  }
  return points;
}

// Relative standard error of the mean issue time over the rounds from `begin` on.
double noise_of(const std::vector<Sample>& samples, std::size_t begin) {
  const auto count = static_cast<double>(samples.size() - begin);
  if (count < 2) return 0;
  double mean = 0;
  for (std::size_t i = begin; i < samples.size(); ++i) mean += samples[i].issue_ns / count;
  double square = 0;
  for (std::size_t i = begin; i < samples.size(); ++i) {
    square += (samples[i].issue_ns - mean) * (samples[i].issue_ns - mean);
  }
  return std::sqrt(square / (count - 1) / count) / mean;
}

void warn_if_noisy(Context& context, const BurstSpec& spec, std::size_t begin) {
  const double noise = noise_of(context.pair.samples, begin);
  if (noise <= kNoiseLimit) return;
  context.pair.warnings.push_back(
      std::string(to_string(spec.kind)) + ", K=" + std::to_string(spec.num_producers) + ", " +
      std::to_string(spec.bytes) + " bytes, gap " + std::to_string(std::lround(spec.gap_ns)) +
      " ns: noise " + std::to_string(std::round(noise * 1000) / 10).substr(0, 4) +
      " % of the mean after " + std::to_string(context.pair.samples.size() - begin) + " rounds");
}

void measure_isolated(Context& context, BurstSpec spec) {
  spec.aligned = true;
  spec.measure_visible = true;
  const bool fixed = context.options.num_rounds > 0;
  spec.num_bursts =
      kWarmRounds + std::min(400, fixed ? context.options.num_rounds : kIsolatedRounds);
  const std::size_t begin = context.pair.samples.size();
  for (int repeat = 0; repeat < (fixed || context.options.quick ? 1 : kMaxRepeats); ++repeat) {
    const std::size_t before = context.pair.samples.size();
    spec.seed = context.next_seed();
    append_isolated(run_checked(context, spec), spec, kWarmRounds, context.pair.samples);
    for (std::size_t i = before; i < context.pair.samples.size(); ++i) {
      context.pair.samples[i].round_idx += static_cast<int>(before - begin);
    }
    if (noise_of(context.pair.samples, begin) <= kNoiseLimit) break;
  }
  warn_if_noisy(context, spec, begin);
}

int num_bursts_of(const Context& context) {
  if (context.options.num_bursts > 0) return std::min(context.options.num_bursts, 500);
  return context.options.quick ? 90 : kPeriodicBursts * 3 / 2;
}

void measure_periodic(Context& context, BurstSpec spec, double gap_ns) {
  spec.gap_ns = gap_ns;
  spec.num_bursts = num_bursts_of(context);
  const std::size_t begin = context.pair.samples.size();
  append_periodic(run_checked(context, spec), spec, gap_ns, context.pair.samples);
  warn_if_noisy(context, spec, begin);
}

// Tensor-core steps that last about `gap_ns`; found by two runs, since clock and power decide.
int gap_steps_for(Context& context, const BurstSpec& spec, double gap_ns) {
  const auto gap_of = [&](int steps) {
    BurstSpec trial = spec;
    trial.num_producers = 1;
    trial.bytes = 1024;
    trial.send.chunk_bytes = piece_bytes(spec.kind, 1024);
    trial.num_bursts = 45;
    trial.gap_steps = steps;
    std::vector<Sample> samples;
    append_periodic(run_checked(context, trial), trial, 0, samples);
    return samples.back().gap_ns;
  };
  const double few = gap_of(8);
  const double many = gap_of(72);
  return std::max(1, static_cast<int>(std::lround((gap_ns - few) / ((many - few) / 64) + 8)));
}

}  // namespace

void part_canary(Context& context) {
  const int few = std::min(4, context.link.num_sms());
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
    if (kind == StoreKind::bulk && !context.link.has_copy_engine_stores()) continue;
    BurstSpec spec = burst_of(context, kind, few, 4096);
    spec.num_bursts = 2;
    const BurstRun run = context.link.run(spec);
    if (run.num_wrong_words != 0) {
      throw Error(ErrorCategory::check_failed, "canary: " + std::to_string(run.num_wrong_words) +
                                                   " of " + std::to_string(run.num_checked_words) +
                                                   " words differ (" +
                                                   std::string(to_string(kind)) + " stores)");
    }
  }
}

void part_rate(Context& context) {
  // Also the pilot that tells the later parts what V/R is.
  const int all = context.link.num_sms();
  context.drain_rate = zero_gap_rate(context, StoreKind::register16, all, 32 * kKib);
  if (context.options.quick) return;
  Table table{"rate", {"kind", "producers", "bytes", "rate_gb_s"}, {}};
  for (const StoreKind kind : kModelKinds) {
    if (!context.measures(kind)) continue;
    for (const int k : {1, 2, 4, 8, 16, 33, 66, all}) {
      if (k > all) continue;
      table.rows.push_back({std::string(to_string(kind)), double(k), 64 * kKib,
                            zero_gap_rate(context, kind, k, 64 * kKib)});
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_isolated(Context& context) {
  for (const StoreKind kind : kModelKinds) {
    if (!context.measures(kind)) continue;
    if (context.options.quick && kind == StoreKind::tensor) continue;
    for (const GridPoint& point : grid_of(context, Experiment::isolated)) {
      if (point.bytes > context.link.max_burst_bytes()) continue;
      measure_isolated(context, burst_of(context, kind, point.num_producers, point.bytes));
    }
  }
}

void part_periodic(Context& context) {
  const int all = context.link.num_sms();
  for (const StoreKind kind : kModelKinds) {
    if (!context.measures(kind)) continue;
    if (context.options.quick && kind == StoreKind::tensor) continue;
    for (const GridPoint& point : grid_of(context, Experiment::periodic)) {
      if (point.bytes > context.link.max_burst_bytes()) continue;
      measure_periodic(context, burst_of(context, kind, point.num_producers, point.bytes),
                       point.gap_ns);
    }
    if (context.options.quick || !context.link.has_copy_engine_stores()) continue;
    // The same with tensor-core work fed by loads instead of an idle gap.
    for (const double kib : {8.0, 32.0}) {
      for (const double share : {0.3, 0.8, 1.05, 1.6}) {
        BurstSpec spec = burst_of(context, kind, all, kib * kKib);
        const double gap_ns = share * kib * kKib * all / context.drain_rate;
        spec.gap_steps = gap_steps_for(context, spec, gap_ns);
        spec.num_bursts = num_bursts_of(context);
        append_periodic(run_checked(context, spec), spec, gap_ns, context.pair.samples);
      }
    }
  }
}

void part_directions(Context& context) {
  if (context.back == nullptr) return;
  const int all = context.link.num_sms();
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
    if (!context.measures(kind)) continue;
    for (const double kib : {8.0, 16.0, 32.0, 64.0}) {
      for (const double share : {0.0, 0.6, 1.3}) {
        BurstSpec spec = burst_of(context, kind, all, kib * kKib);
        spec.gap_ns = share * kib * kKib * all / context.drain_rate;
        spec.num_bursts = 300;
        context.back->prepare(spec);
        context.link.prepare(spec);
        context.back->start();
        context.link.start();
        const BurstRun run = context.link.collect();
        const BurstRun other = context.back->collect();
        if (run.num_wrong_words + other.num_wrong_words != 0) {
          throw Error(ErrorCategory::check_failed, "both directions: wrong words");
        }
        const std::size_t begin = context.pair.samples.size();
        append_periodic(run, spec, spec.gap_ns, context.pair.samples);
        // The first half of the window: the other kernel is surely under way.
        context.pair.samples.resize(begin + (context.pair.samples.size() - begin) / 2);
        for (std::size_t i = begin; i < context.pair.samples.size(); ++i) {
          context.pair.samples[i].num_directions = 2;
        }
      }
    }
  }
}

}  // namespace xstage::probing

// The parts about more than two GPUs: several senders into one receiver, one sender into several
// receivers. With two GPUs they measure their first row, one sender or one receiver.
#include <cmath>
#include <memory>

#include "probe/experiments.hpp"
#include "xstage/grid.hpp"

namespace xstage::probing {
namespace {

const StoreKind kFanKinds[] = {StoreKind::register16, StoreKind::bulk, StoreKind::tensor};
constexpr int kMaxBurstsOfRun = 500;
constexpr int kIsolated = 20;  // rounds, of which the first 4 are dropped
constexpr int kWarm = 4;

// Kernels start some tens of microseconds apart: a run is long enough that the middle of each lies
// in all others.
constexpr double kRunNs = 2e6;

int num_bursts_for(const Context& context, const BurstSpec& spec, std::size_t num_links) {
  const double volume = static_cast<double>(spec.bytes) * spec.num_producers;
  const double period =
      std::max(spec.gap_ns, volume * static_cast<double>(num_links) / context.drain_rate);
  return std::min(kMaxBurstsOfRun, std::max(48, static_cast<int>(kRunNs / period)));
}

// What a sender shows while all send: the first half of its steady window.
struct Steady {
  double rate = 0;  // B/ns
  double issue_ns = 0;
  double issue_p90_ns = 0;
  double issue_slowest_ns = 0;
};

Steady steady_of(const BurstRun& run, const BurstSpec& spec) {
  std::vector<Sample> samples;
  append_periodic(run, spec, spec.gap_ns, samples);
  samples.resize((samples.size() + 1) / 2);
  Steady result;
  const auto count = static_cast<double>(samples.size());
  double period = 0;
  for (const Sample& sample : samples) {
    period += sample.period_ns / count;
    result.issue_ns += sample.issue_ns / count;
    result.issue_p90_ns += sample.issue_p90_ns / count;
    result.issue_slowest_ns = std::max(result.issue_slowest_ns, sample.issue_slowest_ns);
  }
  result.rate = static_cast<double>(spec.bytes) * spec.num_producers / period;
  return result;
}

void require_right(const BurstRun& run, const char* what) {
  if (run.num_wrong_words == 0) return;
  throw Error(ErrorCategory::check_failed,
              std::string(what) + ": " + std::to_string(run.num_wrong_words) + " of " +
                  std::to_string(run.num_checked_words) + " words at the destination are wrong");
}

// The senders of a destination: the pair's own link first, then those of third GPUs.
class Senders {
 public:
  explicit Senders(Context& context) : context_(context), links_{&context.link} {
    for (const int sender : context.senders) {
      owned_.push_back(
          std::make_unique<Link>(sender, context.link.target(), context.link.timeout_s()));
      links_.push_back(owned_.back().get());
    }
  }
  [[nodiscard]] std::size_t size() const { return links_.size(); }

  // The same bursts from the first `count` of them, all at once.
  std::vector<Steady> run(BurstSpec spec, std::size_t count) {
    spec.num_bursts = num_bursts_for(context_, spec, count);
    for (std::size_t i = 0; i < count; ++i) links_[i]->prepare(with_seed(spec, i));
    for (std::size_t i = 0; i < count; ++i) links_[i]->start();
    std::vector<Steady> result;
    for (std::size_t i = 0; i < count; ++i) {
      const BurstRun run = links_[i]->collect();
      require_right(run, "fan_in");
      result.push_back(steady_of(run, spec));
    }
    return result;
  }

  // Isolated bursts of the first one, while the next `count - 1` keep the destination busy.
  std::vector<Sample> run_isolated(BurstSpec spec, std::size_t count) {
    BurstSpec busy = burst_of(context_, spec.kind, context_.link.num_sms(), 64 * kKib);
    busy.num_bursts = kMaxBurstsOfRun;
    spec.aligned = true;
    spec.measure_visible = true;
    spec.num_bursts = kIsolated;
    for (std::size_t i = 1; i < count; ++i) links_[i]->prepare(with_seed(busy, i));
    links_[0]->prepare(spec);
    for (std::size_t i = 1; i < count; ++i) links_[i]->start();
    links_[0]->start();
    const BurstRun run = links_[0]->collect();
    require_right(run, "fan_in");
    for (std::size_t i = 1; i < count; ++i) require_right(links_[i]->collect(), "fan_in");
    std::vector<Sample> samples;
    append_isolated(run, spec, kWarm, samples);
    return samples;
  }

 private:
  static BurstSpec with_seed(BurstSpec spec, std::size_t idx) {
    spec.seed += static_cast<std::uint32_t>(idx) * 7919u;
    return spec;
  }

  Context& context_;
  std::vector<std::unique_ptr<Link>> owned_;
  std::vector<Link*> links_;
};

void add_rates(Context& context, Senders& senders, Table& table) {
  const int all = context.link.num_sms();
  for (const StoreKind kind : kFanKinds) {
    if (!context.measures(kind)) continue;
    for (std::size_t count = 1; count <= senders.size(); ++count) {
      for (const int k : {16, 66, all}) {
        for (const double kib : {8.0, 32.0, 64.0}) {
          if (k > all) continue;
          const auto each = senders.run(burst_of(context, kind, k, kib * kKib), count);
          double sum = 0;
          double least = each[0].rate;
          double most = 0;
          for (const Steady& one : each) {
            sum += one.rate;
            least = std::min(least, one.rate);
            most = std::max(most, one.rate);
          }
          table.rows.push_back({std::string(to_string(kind)), double(count), double(k), kib * kKib,
                                k * kib * kKib * double(count), sum, least, most});
        }
      }
    }
  }
}

void add_bursts(Context& context, Senders& senders, Table& table) {
  const int all = context.link.num_sms();
  for (const StoreKind kind : kFanKinds) {
    if (!context.measures(kind)) continue;
    for (const std::size_t count : {1, 2, 4, 7}) {
      if (count > senders.size()) break;
      for (const double kib : {4.0, 8.0, 16.0, 32.0, 64.0}) {
        const auto rounds = senders.run_isolated(burst_of(context, kind, all, kib * kKib), count);
        Sample mean;
        const auto num_rounds = static_cast<double>(rounds.size());
        double visible = 0;
        for (const Sample& round : rounds) {
          mean.issue_ns += round.issue_ns / num_rounds;
          mean.issue_slowest_ns += round.issue_slowest_ns / num_rounds;
          visible += round.visible_slowest_ns / num_rounds;
        }
        table.rows.push_back({std::string(to_string(kind)), double(count), double(all), kib * kKib,
                              mean.issue_ns, mean.issue_slowest_ns, visible});
      }
    }
  }
}

void add_paced(Context& context, Senders& senders, Table& table) {
  constexpr double kDemand = 0.8;  // of the destination's port, by all senders together
  const int all = context.link.num_sms();
  for (const StoreKind kind : kFanKinds) {
    if (!context.measures(kind)) continue;
    for (std::size_t count = 1; count <= senders.size(); ++count) {
      for (const double kib : {4.0, 8.0, 32.0, 64.0}) {
        BurstSpec spec = burst_of(context, kind, all, kib * kKib);
        spec.gap_ns = context.gap_for(kib * kKib, all, kDemand / double(count));
        const auto each = senders.run(spec, count);
        Steady mean;
        for (const Steady& one : each) {
          mean.rate += one.rate;
          mean.issue_ns += one.issue_ns / double(count);
          mean.issue_p90_ns += one.issue_p90_ns / double(count);
          mean.issue_slowest_ns = std::max(mean.issue_slowest_ns, one.issue_slowest_ns);
        }
        table.rows.push_back({std::string(to_string(kind)), double(count), double(all), kib * kKib,
                              spec.gap_ns, kDemand, mean.rate, mean.issue_ns, mean.issue_p90_ns,
                              mean.issue_slowest_ns});
      }
    }
  }
}

}  // namespace

void part_fan_in(Context& context) {
  if (context.link.target().type != Endpoint::Type::gpu) return;
  Senders senders(context);
  Table rates{"fan_in",
              {"kind", "senders", "producers", "bytes", "in_flight_bytes", "rate_gb_s",
               "least_sender_gb_s", "most_sender_gb_s"},
              {}};
  add_rates(context, senders, rates);
  Table bursts{"fan_in_bursts",
               {"kind", "senders", "producers", "bytes", "issue_ns", "issue_slowest_ns",
                "visible_slowest_ns"},
               {}};
  add_bursts(context, senders, bursts);
  Table paced{"fan_in_paced",
              {"kind", "senders", "producers", "bytes", "gap_ns", "demand", "rate_gb_s", "issue_ns",
               "issue_p90_ns", "issue_slowest_ns"},
              {}};
  add_paced(context, senders, paced);
  for (Table* table : {&rates, &bursts, &paced}) {
    context.pair.tables.push_back(std::move(*table));
  }
}

void part_fan_out(Context& context) {
  if (context.link.target().type != Endpoint::Type::gpu) return;
  std::vector<std::unique_ptr<Link>> owned;
  std::vector<Link*> others;
  const int all = context.link.num_sms();
  Table table{"fan_out", {"kind", "receivers", "producers", "bytes", "rate_gb_s", "issue_ns"}, {}};
  for (std::size_t count = 1; count <= context.receivers.size() + 1; ++count) {
    if (count > 1) {
      owned.push_back(std::make_unique<Link>(
          context.link.source_idx(), Target{Endpoint::Type::gpu, context.receivers[count - 2]},
          context.link.timeout_s()));
      others.push_back(owned.back().get());
    }
    for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
      if (!context.measures(kind)) continue;
      for (const double kib : {8.0, 32.0, 64.0}) {
        BurstSpec spec = burst_of(context, kind, all, kib * kKib);
        spec.num_bursts = num_bursts_for(context, spec, 1);
        context.link.prepare(spec, others);
        context.link.start();
        const BurstRun run = context.link.collect();
        require_right(run, "fan_out");
        const Steady steady = steady_of(run, spec);
        table.rows.push_back({std::string(to_string(kind)), double(count), double(all), kib * kKib,
                              steady.rate, steady.issue_ns});
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

}  // namespace xstage::probing

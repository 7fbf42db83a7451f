// Which law explains isolated bursts best? Fits one CSV of samples with unequal shares (q and s)
// and with equal shares (q alone, the paper's law), each for all K together and by K, and prints
// the errors per store kind and producer count. docs/model.md takes its figures from this output.
//
//   model_accuracy SAMPLES.csv > bench/results/NAME.txt
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "xstage/files.hpp"
#include "xstage/fit.hpp"
#include "xstage/version.hpp"

namespace {

using xstage::CapacityEstimate;
using xstage::ErrorSummary;
using xstage::HeldOut;
using xstage::Interval;
using xstage::KindFit;
using xstage::LinkParams;
using xstage::Sample;

std::string percent(const ErrorSummary& errors) {
  if (errors.num_points == 0) return "-";
  char text[48];
  std::snprintf(text, sizeof(text), "%.2f / %.2f / %.2f", 100 * errors.median, 100 * errors.p95,
                100 * errors.worst);
  return text;
}

std::string kib(const std::optional<CapacityEstimate>& estimate) {
  if (!estimate) return "-";
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f [%.1f %.1f]", estimate->bytes / 1024,
                estimate->interval.low / 1024, estimate->interval.high / 1024);
  return text;
}

std::string interval(const std::optional<Interval>& value, double unit) {
  if (!value) return "";
  char text[48];
  std::snprintf(text, sizeof(text), " [%.4g %.4g]", value->low / unit, value->high / unit);
  return text;
}

// Fitted without the slowest producers: the paper's law.
KindFit equal_shares(std::vector<Sample> samples, xstage::StoreKind store_kind) {
  std::erase_if(samples, [&](const Sample& sample) { return sample.kind != store_kind; });
  for (Sample& sample : samples) sample.issue_slowest_ns = xstage::kUnmeasured;
  return xstage::fit(samples).kinds.front();
}

// One issue time for all producers, judged against both statistics.
LinkParams judged_by_both(LinkParams params) {
  params.capacity_slowest_bytes = params.capacity_mean_bytes;
  for (xstage::Stage& stage : params.stages) {
    stage.capacity_slowest_bytes = stage.capacity_mean_bytes;
  }
  return params;
}

LinkParams one_stage_of(const KindFit& kind) {
  LinkParams params = kind.params;
  params.stages.clear();
  if (!kind.capacity_all_k || !kind.capacity_all_k->by_mean) return params;
  const xstage::CapacityAtK& all = *kind.capacity_all_k;
  params.capacity_mean_bytes = all.by_mean->bytes;
  if (all.by_slowest) params.capacity_slowest_bytes = all.by_slowest->bytes;
  params.share_spread = all.share_spread.value_or(0);
  return params;
}

std::vector<int> filling_counts(const std::vector<Sample>& samples) {
  std::vector<int> counts;
  for (const Sample& sample : samples) {
    if (sample.num_producers >= xstage::kHeldOutMinProducers) {
      counts.push_back(sample.num_producers);
    }
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// Every law over every K, by the mean and by the slowest producer.
void print_isolated(const KindFit& kind, const KindFit& equal, const std::vector<Sample>& samples) {
  const LinkParams& ours = kind.params;
  const LinkParams paper = judged_by_both(equal.params);
  const LinkParams one_stage = one_stage_of(kind);
  const LinkParams paper_one_q = judged_by_both(one_stage_of(equal));
  const std::vector<std::pair<const char*, const LinkParams*>> laws{
      {"unequal, q and s by K", &ours},
      {"unequal, one q, one s", &one_stage},
      {"equal, q by K", &paper},
      {"equal, one q", &paper_one_q}};
  std::printf("  isolated bursts above 8 KiB, one direction, fitted and held out together\n");
  std::printf("  %-6s %-6s %-24s %-24s %-24s\n", "K", "points", "law", "mean", "slowest");
  for (const int count : filling_counts(samples)) {
    std::vector<Sample> chosen;
    for (const Sample& sample : samples) {
      if (sample.experiment == xstage::Experiment::isolated && sample.num_directions == 1 &&
          sample.num_producers == count && sample.bytes > 8 * xstage::kKib) {
        chosen.push_back(sample);
      }
    }
    for (const auto& [name, law] : laws) {
      const HeldOut errors = xstage::evaluate(*law, chosen);
      std::printf("  %-6d %-6d %-24s %-24s %-24s\n", count, errors.burst_gap.num_points, name,
                  percent(errors.burst_gap).c_str(), percent(errors.isolated_slowest).c_str());
    }
  }
}

void print_held_out(const HeldOut& errors) {
  std::printf("  held out: %d points, %.0f %% of them within 25 %% of G*\n",
              errors.burst_gap.num_points, 100 * errors.near_onset_share);
  const auto row = [](const char* name, const ErrorSummary& summary) {
    std::printf("    %-18s %-26s worst: %s\n", name, percent(summary).c_str(),
                summary.worst_point.c_str());
  };
  row("burst-gap", errors.burst_gap);
  row("period", errors.period);
  row("isolated, slowest", errors.isolated_slowest);
  row("coupled", errors.coupled);
  row("unbounded", errors.unbounded);
  row("alpha-beta", errors.alpha_beta);
}

void print_kind(const KindFit& kind, const std::vector<Sample>& samples) {
  const LinkParams& link = kind.params;
  std::printf("\n%s, %d samples\n", std::string(to_string(link.kind)).c_str(), kind.num_samples);
  std::printf("  R %.2f%s B/ns   r %.2f%s B/ns   visible after %.0f ns   both directions x %.3f\n",
              link.drain_rate, interval(kind.drain_rate_interval, 1).c_str(), link.injection_rate,
              interval(kind.injection_rate_interval, 1).c_str(),
              link.visible_latency_ns.value_or(-1), link.both_directions_factor);
  for (const auto& missing : kind.unidentified) {
    std::printf("  unidentified: %s: %s\n", missing.quantity.c_str(), missing.reason.c_str());
  }
  if (kind.held_out) print_held_out(*kind.held_out);
  if (!link.capacity_mean_bytes) return;
  std::printf("  q by mean %.2f%s KiB   by slowest %.2f%s KiB   s %.2f%s\n",
              *link.capacity_mean_bytes / 1024, interval(kind.capacity_mean_interval, 1024).c_str(),
              link.capacity_slowest_bytes.value_or(0) / 1024,
              interval(kind.capacity_slowest_interval, 1024).c_str(), link.share_spread,
              interval(kind.share_spread_interval, 1).c_str());
  std::printf("  q by K, KiB; s fitted for that K, or equal shares\n");
  std::printf("  %-6s %-6s %-20s %-20s %-20s %-20s\n", "K", "s", "by mean", "by slowest",
              "equal, by mean", "equal, by slowest");
  for (const auto& row : kind.capacity_at_k) {
    std::printf("  %-6d %-6.2f %-20s %-20s %-20s %-20s\n", row.num_producers,
                row.share_spread.value_or(0), kib(row.by_mean).c_str(), kib(row.by_slowest).c_str(),
                kib(row.by_mean_equal_shares).c_str(), kib(row.by_slowest_equal_shares).c_str());
  }
  if (kind.capacity_all_k) {
    const auto& all = *kind.capacity_all_k;
    std::printf("  %-6s %-6.2f %-20s %-20s %-20s %-20s\n", "all", all.share_spread.value_or(0),
                kib(all.by_mean).c_str(), kib(all.by_slowest).c_str(),
                kib(all.by_mean_equal_shares).c_str(), kib(all.by_slowest_equal_shares).c_str());
  }
  print_isolated(kind, equal_shares(samples, link.kind), samples);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: model_accuracy SAMPLES.csv\n");
    return 2;
  }
  try {
    const xstage::SampleFile file = xstage::read_samples(argv[1]);
    const auto name = std::filesystem::path(argv[1]).filename().string();
    std::printf("xstage %s (%s), %s, sha256 %s\n", std::string(xstage::version()).c_str(),
                std::string(xstage::source_commit()).c_str(), name.c_str(), file.hash.c_str());
    std::printf(
        "Errors: median / p95 / worst, %% of the period (isolated: of the time to "
        "visibility). Intervals: 95 %%.\n");
    for (const KindFit& kind : xstage::fit(file.samples).kinds) print_kind(kind, file.samples);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_accuracy: error: %s\n", error.what());
    return 1;
  }
}

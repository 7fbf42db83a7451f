// The parts that answer single questions: pieces, placement, address patterns, other store kinds,
// idle links, the local control, memory and fences.
#include <cmath>

#include "probe/costs.hpp"
#include "probe/experiments.hpp"
#include "xstage/grid.hpp"

namespace xstage::probing {
namespace {

constexpr int kRounds = 20;  // of which the first 4 are dropped
constexpr int kWarmRounds = 4;

// Medians over rounds of an aligned burst.
struct Medians {
  double accept = 0, accept_slowest = 0, read = 0, read_slowest = 0, complete = 0,
         complete_slowest = 0, visible = 0, visible_slowest = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Medians medians_of(const BurstRun& run) {
  constexpr int kTimes = 4;
  std::vector<double> all[2 * kTimes];
  for (int round = kWarmRounds; round < run.num_bursts; ++round) {
    double sums[kTimes] = {};
    double slowest[kTimes] = {};
    for (int p = 0; p < run.num_producers; ++p) {
      const BurstTimes& t = run.at(round, p);
      const double values[kTimes] = {t.accept_ns, t.read_ns, t.complete_ns, t.visible_ns};
      for (int i = 0; i < kTimes; ++i) {
        sums[i] += values[i] / run.num_producers;
        slowest[i] = std::max(slowest[i], values[i]);
      }
    }
    for (int i = 0; i < kTimes; ++i) {
      all[2 * i].push_back(sums[i]);
      all[2 * i + 1].push_back(slowest[i]);
    }
  }
  return {median(all[0]), median(all[1]), median(all[2]), median(all[3]),
          median(all[4]), median(all[5]), median(all[6]), median(all[7])};
}

BurstRun run_aligned(Context& context, BurstSpec spec) {
  spec.aligned = true;
  spec.measure_visible = true;
  spec.num_bursts = kRounds;
  return run_checked(context, spec);
}

std::string name_of(Layout::Rows rows) {
  switch (rows) {
    case Layout::Rows::contiguous:
      return "contiguous";
    case Layout::Rows::pitched:
      return "pitched";
    case Layout::Rows::random:
      return "random";
  }
  return "";
}

void add(ProbedPair& pair, const char* name, const char* unit, double value) {
  pair.measurements.push_back({name, unit, value, std::nullopt});
}

}  // namespace

void part_pieces(Context& context) {
  Table table{
      "pieces",
      {"kind", "layout", "producers", "bytes", "piece_bytes", "accept_ns", "accept_slowest_ns",
       "read_ns", "read_slowest_ns", "complete_ns", "visible_ns", "visible_slowest_ns"},
      {}};
  struct Case {
    StoreKind kind;
    Layout::Rows rows;
    std::uint32_t piece_bytes;
  };
  std::vector<Case> cases;
  for (const std::uint32_t piece : {256u, 1024u, 2048u, 4096u, 8192u, 16384u, 32768u}) {
    cases.push_back({StoreKind::bulk, Layout::Rows::contiguous, piece});
  }
  cases.push_back({StoreKind::bulk, Layout::Rows::pitched, 32768});  // one operation a row of 256 B
  for (const auto rows : {Layout::Rows::contiguous, Layout::Rows::pitched}) {
    for (const std::uint32_t piece : {1024u, 2048u, 4096u, 8192u, 16384u, 32768u}) {
      cases.push_back({StoreKind::tensor, rows, piece});
    }
  }
  for (const auto rows : {Layout::Rows::contiguous, Layout::Rows::pitched, Layout::Rows::random}) {
    cases.push_back({StoreKind::register16, rows, 0});
  }
  for (const Case& c : cases) {
    if (!context.measures(c.kind)) continue;
    for (const int k : {1, 16, context.link.num_sms()}) {
      for (const double kib : {8.0, 32.0}) {
        if (c.piece_bytes > kib * kKib) continue;
        BurstSpec spec = burst_of(context, c.kind, k, kib * kKib);
        spec.layout.rows = c.rows;
        spec.send.chunk_bytes = c.piece_bytes;
        const Medians m = medians_of(run_aligned(context, spec));
        table.rows.push_back({std::string(to_string(c.kind)), name_of(c.rows), double(k),
                              kib * kKib, double(c.piece_bytes), m.accept, m.accept_slowest, m.read,
                              m.read_slowest, m.complete, m.visible, m.visible_slowest});
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_placement(Context& context) {
  // If the stage belonged to a TPC, pairs of neighbouring SMs would share it.
  Table table{"placement",
              {"kind", "producers", "placement", "bytes", "issue_ns", "issue_slowest_ns",
               "visible_slowest_ns"},
              {}};
  Table producers{"producers", {"kind", "producers", "bytes", "sm", "issue_ns"}, {}};
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
    if (!context.measures(kind)) continue;
    for (const int k : {2, 16, 66}) {
      for (const bool pairs : {false, true}) {
        for (const double kib : {8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0}) {
          BurstSpec spec = burst_of(context, kind, k, kib * kKib);
          spec.two_per_tpc = pairs;
          const Medians m = medians_of(run_aligned(context, spec));
          table.rows.push_back({std::string(to_string(kind)), double(k),
                                std::string(pairs ? "pairs" : "spread"), kib * kKib, m.read,
                                m.read_slowest, m.visible_slowest});
        }
      }
    }
    const int all = context.link.num_sms();
    BurstSpec spec = burst_of(context, kind, all, 48 * kKib);
    const BurstRun run = run_aligned(context, spec);
    for (int p = 0; p < all; ++p) {
      std::vector<double> rounds;
      for (int round = kWarmRounds; round < run.num_bursts; ++round) {
        rounds.push_back(run.at(round, p).read_ns);
      }
      producers.rows.push_back({std::string(to_string(kind)), double(all), 48 * kKib,
                                double(run.sm[static_cast<std::size_t>(p)]), median(rounds)});
    }
  }
  context.pair.tables.push_back(std::move(table));
  context.pair.tables.push_back(std::move(producers));
}

void part_patterns(Context& context) {
  Table table{
      "patterns", {"kind", "layout", "row_bytes", "pitch_bytes", "producers", "rate_gb_s"}, {}};
  const int all = context.link.num_sms();
  struct Case {
    StoreKind kind;
    Layout layout;
  };
  const Case cases[] = {
      {StoreKind::register16, {Layout::Rows::contiguous, 256, 256}},
      {StoreKind::register16, {Layout::Rows::pitched, 256, 6144}},
      {StoreKind::register16, {Layout::Rows::random, 256, 6144}},
      {StoreKind::register16, {Layout::Rows::pitched, 128, 3072}},
      {StoreKind::bulk, {Layout::Rows::contiguous, 256, 256}},
      {StoreKind::bulk, {Layout::Rows::pitched, 256, 6144}},
      {StoreKind::bulk, {Layout::Rows::random, 256, 6144}},
      {StoreKind::tensor, {Layout::Rows::contiguous, 256, 256}},
      {StoreKind::tensor, {Layout::Rows::pitched, 256, 6144}},
      {StoreKind::tensor, {Layout::Rows::pitched, 128, 3072}},
  };
  for (const Case& c : cases) {
    if (!context.measures(c.kind)) continue;
    table.rows.push_back({std::string(to_string(c.kind)), name_of(c.layout.rows),
                          double(c.layout.row_bytes), double(c.layout.pitch_bytes), double(all),
                          zero_gap_rate(context, c.kind, all, 32 * kKib, c.layout)});
  }
  context.pair.tables.push_back(std::move(table));
}

void part_kinds(Context& context) {
  Table table{"kinds",
              {"kind", "producers", "bytes", "issue_ns", "issue_slowest_ns", "visible_slowest_ns",
               "rate_gb_s"},
              {}};
  for (const StoreKind kind :
       {StoreKind::register16, StoreKind::register8, StoreKind::register4, StoreKind::red,
        StoreKind::bulk, StoreKind::bulk_reduce, StoreKind::load}) {
    if (!context.measures(kind)) continue;
    for (const int k : {1, context.link.num_sms()}) {
      for (const double kib : {4.0, 16.0, 32.0}) {
        const BurstSpec spec = burst_of(context, kind, k, kib * kKib);
        const Medians m = medians_of(run_aligned(context, spec));
        const double rate = zero_gap_rate(context, kind, k, kib * kKib);
        table.rows.push_back({std::string(to_string(kind)), double(k), kib * kKib, m.read,
                              m.read_slowest, m.visible_slowest, rate});
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_idle(Context& context) {
  Table table{
      "idle",
      {"kind", "producers", "bytes", "idle_ns", "issue_ns", "visible_ns", "visible_slowest_ns"},
      {}};
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
    if (!context.measures(kind)) continue;
    for (const int k : {1, context.link.num_sms()}) {
      for (const double idle_ns : {30e3, 100e3, 1e6, 10e6, 100e6}) {
        BurstSpec spec = burst_of(context, kind, k, 8 * kKib);
        spec.idle_ns = idle_ns;
        spec.aligned = true;
        spec.measure_visible = true;
        spec.num_bursts = idle_ns > 20e6 ? 8 : kRounds;
        const Medians m = medians_of(run_checked(context, spec));
        table.rows.push_back({std::string(to_string(kind)), double(k), 8 * kKib, idle_ns, m.read,
                              m.visible, m.visible_slowest});
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_control(Context& context) {
  // The same kernels into the source's own memory: what the loop itself costs.
  Link local(context.link.source_idx(), {Endpoint::Type::local_memory, context.link.source_idx()},
             context.link.timeout_s());
  Context control{local,           nullptr,        context.pair,
                  context.options, context.random, context.drain_rate};
  Table table{"local_control",
              {"kind", "producers", "bytes", "issue_ns", "issue_slowest_ns", "visible_slowest_ns",
               "rate_gb_s"},
              {}};
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk, StoreKind::tensor}) {
    if (!context.measures(kind)) continue;
    for (const int k : {1, context.link.num_sms()}) {
      for (const double kib : {8.0, 32.0, 64.0}) {
        const Medians m = medians_of(run_aligned(control, burst_of(control, kind, k, kib * kKib)));
        table.rows.push_back({std::string(to_string(kind)), double(k), kib * kKib, m.read,
                              m.read_slowest, m.visible_slowest,
                              zero_gap_rate(control, kind, k, kib * kKib)});
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_egress(Context& context) {
  Table table{
      "egress",
      {"kind", "store_alone_gb_s", "read_alone_gb_s", "store_together_gb_s", "read_together_gb_s"},
      {}};
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
    if (!context.measures(kind)) continue;
    const SharedEgress e = measure_shared_egress(context.link, kind);
    table.rows.push_back({std::string(to_string(kind)), e.store_alone, e.read_alone,
                          e.store_together, e.read_together});
  }
  context.pair.tables.push_back(std::move(table));
}

void part_costs(Context& context) {
  const FenceCosts costs = measure_fences(context.link, 64);
  add(context.pair, "fence_idle", "ns", costs.fence_idle_ns);
  add(context.pair, "store_fence", "ns", costs.store_fence_ns);
  if (context.link.has_copy_engine_stores()) {
    add(context.pair, "proxy_fence", "ns", costs.proxy_fence_ns);
    add(context.pair, "bulk_issue", "ns", costs.bulk_issue_ns);
    add(context.pair, "bulk_commit", "ns", costs.bulk_commit_ns);
    add(context.pair, "bulk_read", "ns", costs.bulk_read_ns);
    add(context.pair, "bulk_complete", "ns", costs.bulk_complete_ns);
    add(context.pair, "bulk_fence", "ns", costs.bulk_fence_ns);
  }
  add(context.pair, "store_release", "ns", costs.store_release_ns);
  add(context.pair, "load_round_trip", "ns", costs.load_round_trip_ns);
  if (context.back != nullptr) {
    add(context.pair, "flag_one_way", "ns",
        measure_flag_one_way_ns(context.link, *context.back, 200));
  }
  add(context.pair, "timer_step", "ns", measure_timer_step_ns(context.link));
}

void part_memory(Context& context) {
  add(context.pair, "copy_engine_rate", "B/ns", measure_copy_engine_rate(context.link));
  add(context.pair, "local_read_rate", "B/ns", measure_local_read_rate(context.link));
  add(context.pair, "local_copy_rate", "B/ns", measure_local_copy_rate(context.link));
}

}  // namespace xstage::probing

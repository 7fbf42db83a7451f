#include "cli/exchange_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/text.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage::cli {
namespace {

using model::PairedEstimate;
using model::PairedSeries;

constexpr int kBlockRows = 128;

PairedSeries done_of(const ExchangeSeries& s) {
  return {s.done_ns, s.clock_mhz};
}
PairedSeries sent_of(const ExchangeSeries& s) {
  return {s.sent_ns, s.clock_mhz};
}

const ExchangeSeries* find(const ExchangeMeasurement& m, std::string_view name) {
  for (const auto& s : m.series) {
    if (s.name == name && s.why_not.empty() && !s.done_ns.empty()) return &s;
  }
  return nullptr;
}

// The fastest series whose candidate `fits`; null if none ran.
template <typename Fits>
const ExchangeSeries* fastest(const ExchangeResult& r, Fits fits) {
  const ExchangeSeries* best = nullptr;
  for (std::size_t i = 0; i < r.measured.series.size(); ++i) {
    const ExchangeSeries& s = r.measured.series[i];
    if (!s.why_not.empty() || s.done_ns.empty() || !fits(r.request.candidates[i], s)) continue;
    if (best == nullptr ||
        model::round_median(done_of(s)).value < model::round_median(done_of(*best)).value) {
      best = &s;
    }
  }
  return best;
}

bool is_unfused(const ExchangeCandidate& c, const ExchangeSeries& /*s*/) {
  return !c.with_inputs && (c.way == ExchangeWay::push || c.way == ExchangeWay::copy_engine ||
                            c.way == ExchangeWay::chunked);
}
bool is_fused(const ExchangeCandidate& c, const ExchangeSeries& s) {
  return c.way == ExchangeWay::fused && !c.local_owners && !c.with_inputs && s.fell_back.empty();
}

std::string in_us(double ns) {
  if (std::isnan(ns)) return "-";
  const double us = ns / 1e3;
  const int digits = std::abs(us) < 10 ? 2 : std::abs(us) < 1000 ? 1 : 0;
  return fmt::format("{:.{}f}", us, digits);
}

std::string with_interval(const PairedEstimate& e) {
  const char* mark = e.clocks_differ ? "~" : "";
  if (!e.interval) return mark + in_us(e.value);
  return fmt::format("{}{} [{}, {}]", mark, in_us(e.value), in_us(e.interval->low),
                     in_us(e.interval->high));
}

// Bytes that leave after the last main loop, with the default order on all SMs.
double last_wave_bytes(const ExchangeCase& c, int num_sms) {
  AttentionRun run;
  run.workload = c.workload;
  run.cost.block_rows = kBlockRows;
  run.cost.block_keys = c.workload.head_dim == 64 ? 192 : 160;
  run.num_ranks = c.num_ranks;
  run.split_tail = !c.workload.causal;
  const AttentionOrder order = attention_order(run, 0, num_sms);
  return static_cast<double>(order.last_wave_bytes(
      attention_shards(run, 0), c.workload.head_dim * element_bytes(c.workload.dtype)));
}

void judge(ExchangeResult& r) {
  const ExchangeSeries* unfused = fastest(r, is_unfused);
  const ExchangeSeries* fused = fastest(r, is_fused);
  if (unfused != nullptr) r.verdict.best_unfused = unfused->name;
  if (fused != nullptr) r.verdict.best_fused = fused->name;
  if (unfused == nullptr || fused == nullptr) {
    r.verdict.text = "nothing to compare: a fused way and another one are needed";
    return;
  }
  const PairedEstimate ratio = model::paired_ratio(done_of(*unfused), done_of(*fused));
  const double low = ratio.interval ? ratio.interval->low : ratio.value;
  r.verdict.gains = low > 1;
  const ExchangeSeries* alone = find(r.measured, "alone");
  const double ceiling =
      alone == nullptr ? NAN : model::paired_ratio(done_of(*unfused), done_of(*alone)).value;
  const std::string range =
      ratio.interval ? fmt::format(" [{:.3f}, {:.3f}]", ratio.interval->low, ratio.interval->high)
                     : "";
  r.verdict.text =
      r.verdict.gains
          ? fmt::format(
                "{} is {:.3f}{} x as fast as {}; perfect hiding would be {:.3f}, {:.1f} % "
                "of it are reached",
                fused->name, ratio.value, range, unfused->name, ceiling,
                100 * ratio.value / ceiling)
          : fmt::format("no gain: the fastest fused way, {}, takes {:.3f}{} of the time of {}",
                        fused->name, 1 / ratio.value,
                        ratio.interval ? fmt::format(" [{:.3f}, {:.3f}]", 1 / ratio.interval->high,
                                                     1 / ratio.interval->low)
                                       : "",
                        unfused->name);
}

ExchangeRow make_row(const ExchangeResult& r, const ExchangeSeries& s,
                     const ExchangeSeries& alone) {
  ExchangeRow row;
  row.name = s.name;
  row.total = model::round_median(done_of(s));
  row.over_alone = model::paired_difference(done_of(s), done_of(alone));
  row.sent_over_alone = model::paired_difference(sent_of(s), sent_of(alone));
  const ExchangeSeries* twin = find(r.measured, "burst-local");
  const ExchangeSeries* unfused = fastest(r, is_unfused);
  for (std::size_t i = 0; i < r.measured.series.size(); ++i) {
    const ExchangeCandidate& c = r.request.candidates[i];
    if (&r.measured.series[i] != &s || c.way != ExchangeWay::fused) continue;
    if (twin != nullptr && &s != twin && !c.with_inputs) {
      row.over_local = model::paired_difference(done_of(s), done_of(*twin));
    }
    if (unfused != nullptr && !c.local_owners && !c.with_inputs) {
      row.to_unfused = model::paired_ratio(done_of(s), done_of(*unfused));
    }
  }
  return row;
}

Json estimate_json(const PairedEstimate& e) {
  Json json = {{"value", std::isnan(e.value) ? Json(nullptr) : Json(e.value)},
               {"low", e.interval ? Json(e.interval->low) : Json(nullptr)},
               {"high", e.interval ? Json(e.interval->high) : Json(nullptr)},
               {"rounds", e.num_rounds},
               {"dropped", e.num_dropped},
               {"clocks_differ", e.clocks_differ}};
  return json;
}

std::string prediction_cell(const ExchangeRow& row) {
  return row.predicted == nullptr ? "" : in_us(row.predicted->increment_ns);
}

}  // namespace

ExchangeResult judge_exchange(const ExchangeCase& request, const ExchangeMeasurement& measured,
                              const ExchangePredictions& predictions, const LinkProfile* link) {
  ExchangeResult r;
  r.request = request;
  r.measured = measured;
  if (link != nullptr && request.peers != ExchangePeers::local_ghosts && !link->kinds.empty()) {
    const LinkParams* params = &link->kinds.front().params;
    for (const KindFit& kind : link->kinds) {
      if (kind.params.kind == StoreKind::tensor) params = &kind.params;
    }
    const double rate = params->drain_rate *
                        (request.peers == ExchangePeers::real ? params->both_directions_factor : 1);
    r.drain_ns = static_cast<double>(measured.sent_bytes) / rate;
    r.last_wave_ns = last_wave_bytes(request, measured.num_sms) / rate;
  }
  const ExchangeSeries* alone = find(r.measured, "alone");
  for (const ExchangeSeries& s : r.measured.series) {
    r.all_right &= s.wrong_bytes == 0;
    if (!s.why_not.empty() || s.done_ns.empty() || alone == nullptr) continue;
    r.rows.push_back(make_row(r, s, *alone));
    r.rows.back().predicted = predictions.find(request.key(), s.name);
  }
  judge(r);
  return r;
}

void print_exchange(const ExchangeResult& r, Console& console) {
  const ExchangeMeasurement& m = r.measured;
  const AttentionWorkload& w = r.request.workload;
  console.print("{}\n", console.tone(Tone::strong, r.request.key()));
  console.print(
      "{}x{}x{}x{} {}{}; a rank: {} tiles = {:.2f} waves of {} SMs, sends {:.1f} MB{}{}\n", w.batch,
      w.sequence, w.num_heads, w.head_dim, to_string(w.dtype), w.causal ? " causal" : "",
      m.num_tiles, static_cast<double>(m.num_tiles) / m.num_sms, m.num_sms,
      static_cast<double>(m.sent_bytes) / 1e6,
      r.drain_ns > 0 ? fmt::format(" ({} us at R)", in_us(r.drain_ns)) : "",
      m.emulated ? "; emulated" : "");
  using enum io::TextTable::Align;
  io::TextTable table(
      {"way", "us", "exposed [95 %]", "sender", "over local owners", "predicted", "time / unfused"},
      {left, right, right, right, right, right, right});
  for (const ExchangeRow& row : r.rows) {
    const bool is_alone = row.name == "alone";
    table.add({row.name, in_us(row.total.value), is_alone ? "" : with_interval(row.over_alone),
               is_alone ? "" : in_us(row.sent_over_alone.value),
               row.over_local ? with_interval(*row.over_local) : "",
               is_alone ? "" : prediction_cell(row),
               row.to_unfused ? fmt::format("{:.3f}", row.to_unfused->value) : ""});
  }
  console.print("{}", table.str());
  for (const ExchangeSeries& s : m.series) {
    if (!s.why_not.empty()) console.print("{}: not run: {}\n", s.name, s.why_not);
    if (!s.fell_back.empty()) console.print("{}: serial path: {}\n", s.name, s.fell_back);
    if (s.wrong_bytes != 0) {
      console.print("{}\n", console.tone(Tone::bad, fmt::format("{}: {} bytes are wrong", s.name,
                                                                s.wrong_bytes)));
    }
  }
  if (r.drain_ns > 0) {
    console.print("bound of exposed: what the last wave sends at R + 3.5 us = {} us\n",
                  in_us(r.last_wave_ns + 3500));
  }
  console.print("{}\n\n", r.verdict.text);
}

Json exchange_json(const ExchangeResult& r) {
  const ExchangeMeasurement& m = r.measured;
  const AttentionWorkload& w = r.request.workload;
  Json json = {{"case", r.request.key()},
               {"workload", r.request.name},
               {"shape",
                {{"batch", w.batch},
                 {"rows", w.sequence},
                 {"heads", w.num_heads},
                 {"kv_heads", w.num_kv_heads},
                 {"head_dim", w.head_dim},
                 {"dtype", to_string(w.dtype)},
                 {"causal", w.causal},
                 {"prefix", w.replicated_prefix},
                 {"suffix", w.replicated_suffix}}},
               {"ranks", r.request.num_ranks},
               {"peers", to_string(r.request.peers)},
               {"computing_ranks", m.num_computing_ranks},
               {"emulated", m.emulated},
               {"tiles", m.num_tiles},
               {"sent_bytes", m.sent_bytes},
               {"drain_ns", r.drain_ns},
               {"last_wave_ns", r.last_wave_ns}};
  Json ways = Json::array();
  for (const ExchangeSeries& s : m.series) {
    Json way = {{"way", s.name}};
    way["why_not"] = s.why_not.empty() ? Json(nullptr) : Json(s.why_not);
    way["fell_back"] = s.fell_back.empty() ? Json(nullptr) : Json(s.fell_back);
    way["wrong_bytes"] = s.wrong_bytes;
    const auto row = std::find_if(r.rows.begin(), r.rows.end(),
                                  [&](const ExchangeRow& x) { return x.name == s.name; });
    if (row != r.rows.end()) {
      way["total_ns"] = estimate_json(row->total);
      way["exposed_ns"] = estimate_json(row->over_alone);
      way["sender_ns"] = estimate_json(row->sent_over_alone);
      way["over_local_ns"] = row->over_local ? estimate_json(*row->over_local) : Json(nullptr);
      way["time_to_unfused"] = row->to_unfused ? estimate_json(*row->to_unfused) : Json(nullptr);
      if (row->predicted != nullptr) {
        way["predicted"] = {{"increment_ns", row->predicted->increment_ns},
                            {"alone_ns", row->predicted->alone_ns},
                            {"unbounded_ns", row->predicted->unbounded_ns},
                            {"coupled_ns", row->predicted->coupled_ns}};
      }
    }
    way["done_ns"] = s.done_ns;
    way["sent_ns"] = s.sent_ns;
    way["clock_mhz"] = s.clock_mhz;
    ways.push_back(std::move(way));
  }
  json["ways"] = std::move(ways);
  json["best_unfused"] = r.verdict.best_unfused;
  json["best_fused"] = r.verdict.best_fused;
  json["gains"] = r.verdict.gains;
  json["verdict"] = r.verdict.text;
  return json;
}

}  // namespace xstage::cli

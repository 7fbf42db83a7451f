// xstage predict: bursts -> issue time, period, onset, and what simpler views would say.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "cli/link_option.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/result_json.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"
#include "xstage/model.hpp"

namespace xstage::cli {
namespace {

using io::format_bytes;
using io::format_percent;
using io::format_rate;
using io::format_time;

struct PredictOptions {
  std::string link;
  std::string kind;
  std::string producers;
  std::string bytes;
  std::string gap = "0";
  std::string min;
  std::string max;
  std::string factor = "2";
  std::string out;
  bool force = false;
};

struct Case {
  const KindFit* kind;
  Burst burst;
  Prediction prediction;
};

constexpr std::size_t kMaxCases = 100'000;

std::vector<int> producers_of(const PredictOptions& options, const LinkProfile& profile) {
  const int num_sms = profile.source.num_sms;
  const std::string device = profile.source.name.empty() ? "the source" : profile.source.name;
  const Range range = num_sms > 0
                          ? Range{1, double(num_sms), fmt::format("{} has {} SMs", device, num_sms)}
                          : Range{1, 1e6, "the profile does not say how many SMs there are"};
  if (options.producers.empty()) {
    if (num_sms == 0) fail_value("--producers", "", "1..1000000 (the profile has no default)");
    return {num_sms};
  }
  return parse_list("--producers", options.producers,
                    [&](auto option, auto text) { return parse_count(option, text, range); });
}

std::vector<double> bytes_of(const PredictOptions& options) {
  const bool is_sweep = !options.min.empty() || !options.max.empty();
  if (is_sweep && !options.bytes.empty()) {
    throw Error(ErrorCategory::usage, "--bytes and --min/--max exclude each other");
  }
  if (is_sweep) {
    if (options.min.empty() || options.max.empty()) {
      throw Error(ErrorCategory::usage, "--min and --max belong together");
    }
    return size_sweep(options.min, options.max, options.factor);
  }
  if (options.bytes.empty()) {
    throw Error(ErrorCategory::usage,
                "--bytes is missing: bytes that each producer issues in a burst, such as 32K");
  }
  return parse_list("--bytes", options.bytes,
                    [](auto option, auto text) { return parse_size(option, text, kSizeRange); });
}

std::vector<Case> predict_cases(const PredictOptions& options, const LinkProfile& profile) {
  const auto kinds = select_kinds(profile, options.kind);
  const auto producers = producers_of(options, profile);
  const auto bytes = bytes_of(options);
  const auto gaps = parse_list("--gap", options.gap, [](auto option, auto text) {
    return parse_time(option, text, kTimeRange);
  });
  const std::size_t num_cases = kinds.size() * producers.size() * bytes.size() * gaps.size();
  if (num_cases > kMaxCases) {
    throw Error(ErrorCategory::usage,
                fmt::format("{} cases: legal are up to {} in one call", num_cases, kMaxCases));
  }
  std::vector<Case> cases;
  for (const auto* kind : kinds) {
    for (const int num_producers : producers) {
      for (const double size : bytes) {
        for (const double gap_ns : gaps) {
          const Burst burst{num_producers, size, gap_ns};
          cases.push_back({kind, burst, predict(kind->params, burst)});
        }
      }
    }
  }
  return cases;
}

// ---- text ----

// "1 gap" reads badly with a zero; and steady state has no gap then.
std::string describe_burst(const Case& c) {
  return fmt::format("{}  {} x {}, {}", to_string(c.kind->params.kind), c.burst.num_producers,
                     format_bytes(c.burst.bytes),
                     c.burst.gap_ns == 0 ? "no gap" : "gap " + format_time(c.burst.gap_ns));
}

std::string describe_issue(const Prediction& p) {
  if (p.wait_ns <= 0) return "all of it work: the stage takes the burst";
  return fmt::format("{} work + {} waiting for room", format_time(p.t0_ns), format_time(p.wait_ns));
}

std::string describe_no_wait(const Prediction& p) {
  const std::string by_gap =
      p.onset_gap_ns <= 0 ? "at any gap" : fmt::format("gap >= {}", format_time(p.onset_gap_ns));
  const std::string by_size =
      std::isinf(p.max_free_bytes)
          ? "any size: so few producers cannot fill the link"
          : fmt::format("up to {} a producer at this gap", format_bytes(p.max_free_bytes));
  return fmt::format("{}, or {}", by_gap, by_size);
}

std::string describe_isolated(const Case& c) {
  const Prediction& p = c.prediction;
  if (!p.isolated_issue_ns) {
    for (const auto& entry : c.kind->unidentified) {
      if (entry.quantity.starts_with("capacity")) return fmt::format("unknown: {}", entry.reason);
    }
    return "unknown: the profile holds no capacity";
  }
  std::string text = format_time(*p.isolated_issue_ns);
  if (p.isolated_issue_slowest_ns && *p.isolated_issue_slowest_ns > *p.isolated_issue_ns * 1.005) {
    text += fmt::format(" mean, {} slowest producer", format_time(*p.isolated_issue_slowest_ns));
  }
  if (p.isolated_visible_ns) {
    text += fmt::format("; visible after {}", format_time(*p.isolated_visible_ns));
  }
  return text;
}

std::string describe_pacing(const Case& c) {
  const Prediction& p = c.prediction;
  if (p.demand > effective_drain_rate(c.kind->params, c.burst.num_producers) * (1 + 1e-9)) {
    return "cannot help: the demand itself exceeds what drains";
  }
  if (!p.first_stalled_burst_idx) {
    return p.isolated_issue_ns ? "not needed: nobody waits" : "unknown without a capacity";
  }
  return fmt::format(
      "may help: in lockstep somebody waits from burst {} on, drifting or smaller "
      "ones do not",
      *p.first_stalled_burst_idx + 1);
}

std::string counterfactual(const Counterfactual& c) {
  return fmt::format("issue {:>8}, period {:>8}", format_time(c.issue_ns),
                     format_time(c.period_ns));
}

void print_case(const Case& c, const LinkProfile& profile, Console& console) {
  const Prediction& p = c.prediction;
  const double rate = effective_drain_rate(c.kind->params, c.burst.num_producers);
  const bool free = p.regime == Regime::free;
  console.print("{}\n",
                console.tone(Tone::strong, fmt::format("{}  {}", profile.name, describe_burst(c))));
  console.print("issue time   {:>8}   {}\n", format_time(p.issue_ns), describe_issue(p));
  console.print("period       {:>8}   {}: wants {} = {} of what drains, {}\n",
                format_time(p.period_ns),
                console.tone(free ? Tone::good : Tone::bad, free ? "free" : "drain-limited"),
                format_rate(p.demand), format_percent(p.demand / rate), format_rate(rate));
  console.print("no waiting   {}\n", describe_no_wait(p));
  console.print("first burst  {}\n", describe_isolated(c));
  console.print("pacing       {}\n", describe_pacing(c));
  console.print("otherwise    coupled     {}\n", counterfactual(p.coupled));
  console.print("             unbounded   {}\n", counterfactual(p.unbounded));
  console.print("             alpha-beta  {}\n", counterfactual(p.alpha_beta));
}

std::string in_us(double ns) {
  return fmt::format("{:.2f}", ns / 1e3);
}
std::string in_us(const std::optional<double>& ns) {
  return ns ? in_us(*ns) : "-";
}

void print_table(const std::vector<Case>& cases, const LinkProfile& profile, Console& console) {
  using enum io::TextTable::Align;
  console.print("{}  {}   times in us\n", console.tone(Tone::strong, profile.name),
                describe_pair(profile));
  io::TextTable table({"kind", "SMs", "bytes", "gap", "issue", "waiting", "period", "demand/R",
                       "free from gap", "1st burst", "slowest"},
                      {left});
  for (const auto& c : cases) {
    const Prediction& p = c.prediction;
    const double rate = effective_drain_rate(c.kind->params, c.burst.num_producers);
    table.add({std::string(to_string(c.kind->params.kind)),
               fmt::format("{}", c.burst.num_producers), format_bytes(c.burst.bytes),
               in_us(c.burst.gap_ns), in_us(p.issue_ns), in_us(p.wait_ns), in_us(p.period_ns),
               format_percent(p.demand / rate), in_us(p.onset_gap_ns), in_us(p.isolated_issue_ns),
               in_us(p.isolated_issue_slowest_ns)});
  }
  console.print("{}", table.str());
}

int run_predict(const PredictOptions& options, Console& console) {
  const LinkProfile profile = load_link_option(options.link, console).profile;
  const auto cases = predict_cases(options, profile);

  Json predictions = Json::array();
  if (console.json || !options.out.empty()) {
    for (const auto& c : cases) {
      predictions.push_back(io::prediction_json(c.kind->params, c.burst, c.prediction));
    }
  }
  if (!options.out.empty()) {
    Json file = {{"schema", "xstage.predictions"}, {"version", 1}};
    file["link"] = link_identity(profile);
    file["predictions"] = predictions;
    write_text_file(options.out, io::format_json(file),
                    options.force ? Overwrite::yes : Overwrite::no);
  }
  console.result("schema", "xstage.predictions");
  console.result("version", 1);
  console.result("link", link_identity(profile));
  console.result("predictions", std::move(predictions));

  if (cases.size() == 1) {
    print_case(cases.front(), profile, console);
    console.next(options.out.empty()
                     ? fmt::format("xstage predict{} --min 1K --max 128K --gap {}   (a sweep)",
                                   options.link.empty() ? "" : " --link " + options.link,
                                   options.gap)
                     : fmt::format("measure, then compare with {}", options.out));
  } else {
    print_table(cases, profile, console);
    console.next(options.out.empty()
                     ? "one kind and one size show the alternatives as well; --json "
                       "has everything"
                     : fmt::format("measure, then compare with {}", options.out));
  }
  return 0;
}

}  // namespace

Action setup_predict(CLI::App& app) {
  auto options = std::make_shared<PredictOptions>();
  add_link_option(app, options->link);
  app.add_option("--kind", options->kind,
                 "Store kinds, e.g. bulk,register16; left out: all measured")
      ->type_name("LIST");
  app.add_option("--producers", options->producers,
                 "SMs that store at once; left out: all of the source GPU")
      ->type_name("LIST");
  app.add_option("--bytes", options->bytes, "Bytes that each producer issues in a burst")
      ->type_name("LIST");
  app.add_option("--min", options->min, "Smallest size of a sweep instead of --bytes")
      ->type_name("SIZE");
  app.add_option("--max", options->max, "Largest size of the sweep")->type_name("SIZE");
  app.add_option("--factor", options->factor, "Step of the sweep")
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--gap", options->gap,
                 "Time of a period in which a producer does not issue (its compute)")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--out", options->out, "Also write the predictions to this file")
      ->type_name("FILE");
  app.add_flag("--force", options->force, "Replace that file");
  return [options](Console& console) { return run_predict(*options, console); };
}

}  // namespace xstage::cli

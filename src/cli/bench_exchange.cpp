// xstage bench exchange: attention with its output exchange, serial and fused, beside attention
// alone, in one run; what stays exposed, what was predicted, and whether fusing gains anything.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/exchange_cases.hpp"
#include "cli/exchange_view.hpp"
#include "cli/link_option.hpp"
#include "cli/provenance.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/group.hpp"
#include "xstage/peer_table.hpp"

namespace xstage::cli {
namespace {

struct ExchangeVerbOptions {
  std::vector<std::string> workloads;
  std::string ranks = "2";
  std::string peers = "host";
  std::string ways;
  std::string link;
  std::string costs;
  std::string rounds = "40";
  std::string seconds = "2s";
  std::string seed = "1";
  std::string predict;
  std::string predictions;
  std::string out;
  bool force = false;
};

#ifdef XSTAGE_HAS_ATTENTION
ExchangeMeasurement measure_on_gpu(const ExchangeBenchOptions& options) {
  return measure_exchange(options);
}
#else
ExchangeMeasurement measure_on_gpu(const ExchangeBenchOptions& /*options*/) {
  throw Error(
      ErrorCategory::not_possible,
      "this build of xstage has no CUDA support and cannot measure; build it where nvcc is");
}
#endif

std::vector<ExchangeCase> parse_cases(const ExchangeVerbOptions& options) {
  const auto ranks = parse_list("--ranks", options.ranks, [](auto option, auto word) {
    return parse_count(option, word, {1, kMaxRanks, ""});
  });
  std::vector<ExchangePeers> peers;
  for (const auto& word : split_list("--peers", options.peers)) {
    peers.push_back(parse_exchange_peers(word));
  }
  const auto ways =
      options.ways.empty() ? std::vector<std::string>{} : split_list("--ways", options.ways);
  const std::vector<std::string> workloads =
      options.workloads.empty() ? std::vector<std::string>{"flux.1-dev-1024"} : options.workloads;
  std::vector<ExchangeCase> cases;
  for (const auto& word : workloads) {
    ExchangeCase one = parse_exchange_case(word);
    one.candidates = exchange_candidates(one.workload, ways);
    for (const ExchangePeers place : peers) {
      for (const int num_ranks : ranks) {
        if (num_ranks > one.workload.num_heads) {
          throw Error(ErrorCategory::usage,
                      fmt::format("--ranks {}: legal 1..{} ({} has {} heads)", num_ranks,
                                  one.workload.num_heads, one.name, one.workload.num_heads));
        }
        one.num_ranks = num_ranks;
        one.peers = place;
        cases.push_back(one);
      }
    }
  }
  return cases;
}

// Predictions that were filed, or made now.
ExchangePredictions predictions_for(const ExchangeVerbOptions& options,
                                    const std::vector<ExchangeCase>& cases, const LinkProfile& link,
                                    const TileCosts& costs, Console& console) {
  if (options.predictions.empty()) return predict_cases(cases, link, costs, console);
  ExchangePredictions filed = read_predictions(options.predictions);
  for (const ExchangeCase& c : cases) {
    if (!filed.cases.contains(c.key())) {
      console.warn(fmt::format("{} says nothing of {}", options.predictions, c.key()));
    }
  }
  return filed;
}

int write_predictions(const ExchangeVerbOptions& options, const std::vector<ExchangeCase>& cases,
                      const LinkProfile& link, const TileCosts& costs, Console& console) {
  Json json = predictions_json(predict_cases(cases, link, costs, console));
  Provenance provenance;
  stamp(provenance, console.command_line);
  json["link"] = link.name;
  json["costs"] = costs.name;
  json["date"] = utc_now();
  json["commit"] = provenance.commit;
  json["command_line"] = provenance.command_line;
  write_text_file(options.predict, io::format_json(json),
                  options.force ? Overwrite::yes : Overwrite::no);
  console.print("wrote {}: {} cases, link {}, tile costs {}\n", options.predict, cases.size(),
                link.name, costs.name);
  console.result("predictions", std::move(json));
  console.next(fmt::format("xstage bench exchange ... --predictions {}", options.predict));
  return 0;
}

class ExchangeRun {
 public:
  ExchangeRun(const ExchangeVerbOptions& options, Console& console)
      : options_(options), console_(console) {}

  int run() {
    const auto cases = parse_cases(options_);
    const LinkProfile link = load_link_option(options_.link, console_).profile;
    std::vector<std::string> warnings;
    const TileCosts costs = read_costs(find_costs(options_.costs), &warnings);
    for (const auto& warning : warnings) console_.warn(warning);
    if (!options_.predict.empty()) {
      return write_predictions(options_, cases, link, costs, console_);
    }
    if (!options_.out.empty() && !options_.force && std::filesystem::exists(options_.out)) {
      throw Error(ErrorCategory::usage,
                  fmt::format("{}: exists; --force replaces it", options_.out));
    }
    const auto predictions = predictions_for(options_, cases, link, costs, console_);
    join();
    Json results = Json::array();
    bool all_right = true;
    bool gains = false;
    std::optional<ExchangeMeasurement> machine;
    for (const ExchangeCase& c : cases) {
      machine = measure(c);
      const ExchangeResult result = judge_exchange(c, *machine, predictions, &link);
      print_exchange(result, console_);
      results.push_back(exchange_json(result));
      all_right &= result.all_right;
      gains |= result.verdict.gains;
      write(results, *machine, predictions, link, costs);
    }
    if (!options_.out.empty()) console_.print("wrote {}\n", options_.out);
    console_.print("predictions {}: link {} ({}), tile costs {} ({})\n",
                   predictions.file.empty() ? "made by this run" : "from " + predictions.file,
                   link.name, predictions.link_sha256.substr(0, 12), costs.name,
                   predictions.costs_sha256.substr(0, 12));
    console_.next(!all_right ? "xstage doctor: bytes were wrong"
                  : gains    ? "xstage plan WORKLOAD: what else could be run"
                             : "xstage plan WORKLOAD: why fusing cannot help here");
    return all_right ? 0 : 1;
  }

 private:
  // A launcher's processes are one job; the first one speaks.
  void join() {
    const LaunchInfo launch = read_launch();
    if (launch.num_ranks < 2) return;
    group_.emplace(Group::join(launch));
    if (group_->rank() != 0) console_.hush();
  }

  ExchangeMeasurement measure(const ExchangeCase& c) {
    ExchangeBenchOptions request;
    request.workload = c.workload;
    request.num_ranks = c.num_ranks;
    request.peers = c.peers;
    request.candidates = c.candidates;
    request.max_rounds = parse_count("--rounds", options_.rounds, {1, 1e4, ""});
    request.min_rounds = std::min(5, request.max_rounds);
    request.seconds = parse_time("--seconds", options_.seconds, {1e6, 3.6e12, "1 ms to 1 h"}) / 1e9;
    request.seed = static_cast<std::uint64_t>(parse_count("--seed", options_.seed, {0, 2e9, ""}));
    request.group = group_ ? &*group_ : nullptr;
    request.progress = [&](std::string_view what) {
      console_.progress(fmt::format("{}: {}", c.key(), what));
    };
    return measure_on_gpu(request);
  }

  // After every case: what was measured survives what comes next.
  void write(const Json& results, const ExchangeMeasurement& machine,
             const ExchangePredictions& predictions, const LinkProfile& link,
             const TileCosts& costs) {
    Provenance provenance;
    stamp(provenance, console_.command_line);
    Json json = {{"schema", "xstage.exchange"},
                 {"version", 1},
                 {"date", utc_now()},
                 {"tool_version", provenance.tool_version},
                 {"commit", provenance.commit},
                 {"command_line", provenance.command_line},
                 {"gpu", machine.gpu},
                 {"num_sms", machine.num_sms},
                 {"driver", machine.driver_version},
                 {"runtime", machine.runtime_version},
                 {"seed", parse_count("--seed", options_.seed, {0, 2e9, ""})},
                 {"link", link_identity(link)},
                 {"costs", {{"name", costs.name}, {"sha256", costs.hash}}},
                 {"predictions",
                  {{"file", predictions.file.empty() ? Json(nullptr) : Json(predictions.file)},
                   {"link_sha256", predictions.link_sha256},
                   {"costs_sha256", predictions.costs_sha256}}},
                 {"cases", results}};
    const bool speaks = !group_ || group_->rank() == 0;
    if (!options_.out.empty() && speaks) {
      write_text_file(options_.out, io::format_json(json),
                      written_ || options_.force ? Overwrite::yes : Overwrite::no);
      written_ = true;
    }
    for (auto& [key, value] : json.items()) console_.result(key, value);
  }

  const ExchangeVerbOptions& options_;
  Console& console_;
  std::optional<Group> group_;
  bool written_ = false;
};

}  // namespace

Action setup_bench_exchange(CLI::App& app) {
  auto options = std::make_shared<ExchangeVerbOptions>();
  const auto add = [&app](const char* name, std::string& value, const char* what,
                          const char* type) {
    return app.add_option(name, value, what)->type_name(type);
  };
  app.add_option("workloads", options->workloads,
                 "Shipped names, files, or sizes ROWSxHEADS, BxROWSxHEADS, BxROWSxHEADSxDIM (heads "
                 "of all ranks); left out: flux.1-dev-1024")
      ->type_name("NAME|FILE|SIZES");
  add("--ranks", options->ranks, "Ranks that share the work", "LIST")->capture_default_str();
  add("--peers", options->peers,
      "Where the other ranks' memory lies: host, local or peer (ghosts: one rank computes), or "
      "real (every rank computes, on a GPU of its own)",
      "LIST")
      ->capture_default_str();
  add("--ways", options->ways,
      "Besides attention alone: push, copy-engine, chunked, burst, burst-local, paced, fine, "
      "coupled, linear, senders, registers, block-push, block-burst (docs/exchange.md); left out: "
      "all but senders",
      "LIST");
  add_link_option(app, options->link);
  add("--costs", options->costs, "Tile costs, by name or file; left out: h200", "NAME|FILE");
  add("--rounds", options->rounds, "At most so many rounds of each case", "N")
      ->capture_default_str();
  add("--seconds", options->seconds, "About how long the rounds of a case may take", "TIME")
      ->capture_default_str();
  add("--seed", options->seed, "Of the inputs", "N")->capture_default_str();
  add("--predict", options->predict, "Write what is predicted and stop: needs no GPU", "FILE");
  add("--predictions", options->predictions, "Compare with the predictions of that file", "FILE");
  add("--out", options->out, "Write all samples and results", "FILE");
  app.add_flag("--force", options->force, "Replace files that exist");
  app.footer(
      "example: xstage bench exchange flux.1-dev-1024 8192x32 --ranks 8 --link h200-host-pcie5\n"
      "real ranks, one process each: torchrun --nproc-per-node 2 --no-python xstage bench exchange "
      "--peers real");
  return [options](Console& console) { return ExchangeRun(*options, console).run(); };
}

}  // namespace xstage::cli

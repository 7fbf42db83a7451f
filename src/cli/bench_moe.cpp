// xstage bench moe: the expert-parallel layer phase by phase, and the ways to move its rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "cli/provenance.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/file_io.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"
#include "xstage/workload.hpp"
#ifdef XSTAGE_HAS_MOE
#include "moe/measure.hpp"
#include "moe/measure_inputs.hpp"
#include "xstage/topology.hpp"
#endif

namespace xstage::cli {
namespace {

struct BenchMoeOptions {
  std::vector<std::string> workloads;
  std::string tokens;
  std::string ranks = "2";
  std::string devices = "0";
  std::string peer = "local";
  std::string ways = "pull+pull";
  std::string repeats = "20";
  std::string skew;
  std::string seed = "1";
  std::string out;
  bool movement = false;
  bool force = false;
};

#ifdef XSTAGE_HAS_MOE

using moe::LayerResult;
using moe::LayerRun;
using moe::LayerTimes;
using moe::MachineRates;
using moe::Spread;
using moe::Way;

MoeTransfer parse_transfer(std::string_view word) {
  if (word == "pull") return MoeTransfer::pull;
  if (word == "push") return MoeTransfer::push;
  fail_value("--ways", std::string(word), "pull, pull-each or push, '+', pull or push");
}

// "pull+pull": dispatch, then combine; "pull-each": a token crosses once per expert.
Way parse_way(std::string_view text) {
  const auto plus = text.find('+');
  if (plus == std::string_view::npos) {
    fail_value("--ways", std::string(text), "DISPATCH+COMBINE, such as pull+pull");
  }
  Way way;
  std::string_view dispatch = text.substr(0, plus);
  if (dispatch == "pull-each") {
    way.send_once = false;
    dispatch = "pull";
  }
  way.dispatch = parse_transfer(dispatch);
  way.combine = parse_transfer(text.substr(plus + 1));
  return way;
}

std::string name_of(const Way& way) {
  const auto name = [](MoeTransfer t) { return t == MoeTransfer::pull ? "pull" : "push"; };
  return fmt::format("{}{}+{}", name(way.dispatch), way.send_once ? "" : "-each",
                     name(way.combine));
}

Json to_json(const Spread& spread) {
  Json samples = Json::array();
  for (const double us : spread.samples) samples.push_back(std::round(us * 1e3) / 1e3);
  return {{"median", spread.median},
          {"p10", spread.p10},
          {"p90", spread.p90},
          {"samples", std::move(samples)}};
}

Json machine_json() {
  const Topology topology = discover();
  Json gpus = Json::array();
  for (const Gpu& gpu : topology.gpus) {
    gpus.push_back({{"name", gpu.name}, {"uuid", gpu.uuid}, {"num_sms", gpu.num_sms}});
  }
  return {{"host_id", topology.host_id},
          {"driver_cuda", topology.driver_version},
          {"runtime_cuda", topology.runtime_version},
          {"gpus", std::move(gpus)}};
}

Json to_json(const MachineRates& rates) {
  Json json = {{"local_copy", rates.local_copy},
               {"local_read", rates.local_read},
               {"to_host", rates.to_host},
               {"from_host", rates.from_host}};
  json["peer_copy"] = rates.peer_copy > 0 ? Json(rates.peer_copy) : Json(nullptr);
  return json;
}

Json to_json(const LayerTimes& times) {
  return {{"way", name_of(times.way)},
          {"whole_us", to_json(times.whole)},
          {"stage_us", to_json(times.stage)},
          {"route_us", to_json(times.route)},
          {"dispatch_us", to_json(times.dispatch)},
          {"linear1_us", to_json(times.linear1)},
          {"linear2_us", to_json(times.linear2)},
          {"scatter_us", to_json(times.scatter)},
          {"meet_us", to_json(times.meet)},
          {"sum_us", to_json(times.sum)},
          {"finite", times.finite},
          {"peer_bytes", times.peer_bytes},
          {"workspace_bytes", times.workspace_bytes}};
}

Json to_json(const LayerRun& run, const std::string& name, const LayerResult& result) {
  const auto& v = result.volume;
  Json json = {{"workload", name},
               {"tokens", run.num_tokens},
               {"ranks", run.num_ranks},
               {"emulated", result.emulated},
               {"skew", run.skew},
               {"rows", v.rows},
               {"padded_rows", v.padded_rows},
               {"active_experts", v.active_experts},
               {"full_tiles", v.full_tiles},
               {"half_tiles", v.half_tiles},
               {"products_flop", v.products_flop},
               {"weight_bytes", v.weight_bytes},
               {"pool_bytes", v.pool_bytes},
               {"dispatch_remote_bytes", v.dispatch_remote_bytes},
               {"dispatch_unique_bytes", v.dispatch_unique_bytes},
               {"combine_bytes", v.combine_bytes},
               {"combine_remote_bytes", v.combine_remote_bytes}};
  // As an entry of "moe" in a file of tile costs; large calls only: small ones wait for weights.
  const LayerTimes& first = result.ways[0];
  const auto tiles =
      moe::tile_times(v, run.shape, first.linear1.median, first.linear2.median, result.num_sms);
  json["cost"] = !run.with_products || tiles.step_ns == 0
                     ? Json(nullptr)
                     : Json{{"dtype", to_string(run.shape.dtype)},
                            {"block_m", 128},
                            {"block_n", 256},
                            {"block_k", 128},
                            {"step_ns", tiles.step_ns},
                            {"tile_ns", tiles.tile_ns},
                            {"estimated", false}};
  json["ways"] = Json::array();
  for (const LayerTimes& times : result.ways) json["ways"].push_back(to_json(times));
  return json;
}

LayerRun parse_run(const BenchMoeOptions& options) {
  LayerRun run;
  run.num_ranks = parse_count("--ranks", options.ranks, {1, Workload::kMaxRanks, ""});
  run.devices = parse_list("--device", options.devices, [](auto option, auto word) {
    return parse_count(option, word, {0, 71, "GPU indices"});
  });
  if (static_cast<int>(run.devices.size()) > run.num_ranks) {
    fail_value("--device", options.devices, fmt::format("up to {} (--ranks)", run.num_ranks));
  }
  if (options.peer != "local" && options.peer != "host") {
    fail_value("--peer", options.peer, "local, host");
  }
  run.ghosts = options.peer == "host" ? Placement::host : Placement::device;
  run.ways = parse_list("--ways", options.ways,
                        [](auto, auto word) { return parse_way(std::string_view(word)); });
  run.num_repeats = parse_count("--repeats", options.repeats, {1, 10'000, ""});
  run.seed = static_cast<std::uint64_t>(parse_count("--seed", options.seed, {0, 2e9, ""}));
  run.with_products = !options.movement;
  return run;
}

void print_result(const LayerRun& run, const std::string& name, const LayerResult& result,
                  Console& console) {
  using enum io::TextTable::Align;
  const auto& v = result.volume;
  console.print("{}\n",
                console.tone(Tone::strong,
                             fmt::format("{}  {} tokens a rank, {} ranks{}", name, run.num_tokens,
                                         run.num_ranks, result.emulated ? ", emulated" : "")));
  console.print("{} rows for {} experts ({} with padding); {} of weights\n", v.rows,
                v.active_experts, v.padded_rows, io::format_bytes(v.weight_bytes));
  io::TextTable table({"  way", "us", "route", "dispatch", "linear1", "linear2", "scatter", "meet",
                       "sum", "(stage)"},
                      {left, right, right, right, right, right, right, right, right, right});
  for (const LayerTimes& t : result.ways) {
    const auto us = [](const Spread& spread) { return fmt::format("{:.1f}", spread.median); };
    table.add({"  " + name_of(t.way), us(t.whole), us(t.route), us(t.dispatch), us(t.linear1),
               us(t.linear2), us(t.scatter), us(t.meet), us(t.sum), us(t.stage)});
  }
  console.print("{}", table.str());
  const LayerTimes& first = result.ways[0];
  const auto rate = [](double bytes, const Spread& spread) {
    return spread.median > 0 ? bytes / spread.median / 1e3 : 0;
  };
  console.print(
      "rates of {}: dispatch {:.0f} GB/s ({:.0f} remote), sum {:.0f} ({:.0f} remote)",
      name_of(first.way), rate(v.pool_bytes, first.dispatch),
      rate(first.way.send_once && first.way.dispatch == MoeTransfer::pull ? v.dispatch_unique_bytes
                                                                          : v.dispatch_remote_bytes,
           first.dispatch),
      rate(v.combine_bytes, first.sum), rate(v.combine_remote_bytes, first.sum));
  if (run.with_products) {
    console.print(", products {:.0f} TFLOP/s",
                  v.products_flop / (first.linear1.median + first.linear2.median) / 1e6);
  }
  console.print("\n");
  for (const LayerTimes& t : result.ways) {
    if (!t.finite)
      console.warn(fmt::format("{}: y holds values that are no numbers", name_of(t.way)));
  }
}

int run_bench(const BenchMoeOptions& options, Console& console) {
  LayerRun common = parse_run(options);
  // Started by torchrun, mpirun or srun: a rank a process, each on its own GPU; rank 0 speaks.
  const LaunchInfo launch = read_launch();
  std::unique_ptr<Group> group;
  if (launch.num_ranks > 1) {
    group = std::make_unique<Group>(Group::join(launch));
    common.group = group.get();
    common.num_ranks = launch.num_ranks;
    common.devices = {launch.local_rank};
    if (launch.rank != 0) console.hush();
  }
  const bool speaks = launch.rank == 0;
  if (speaks && !options.out.empty() && !options.force && std::filesystem::exists(options.out)) {
    throw Error(ErrorCategory::usage, fmt::format("{}: exists; --force replaces it", options.out));
  }
  const MachineRates rates = moe::measure_rates(common.devices);
  console.print("copy {:.0f} GB/s, read {:.0f} GB/s, from host {:.1f} GB/s", rates.local_copy,
                rates.local_read, rates.from_host);
  if (rates.peer_copy > 0) console.print(", peer {:.0f} GB/s", rates.peer_copy);
  console.print("\n");
  Json results = Json::array();
  bool is_fine = true;
  for (const std::string& name : options.workloads) {
    const Workload workload = read_workload(find_workload(name));
    const auto* moe = std::get_if<MoeWorkload>(&workload.op);
    if (moe == nullptr) {
      throw Error(ErrorCategory::usage, fmt::format("{}: not an MoE workload", name));
    }
    LayerRun run = common;
    run.shape = {
        moe->tokens_per_rank,    moe->hidden, moe->intermediate, moe->num_experts, moe->top_k,
        moe->num_shared_experts, moe->dtype};
    run.skew = moe->skew;
    if (!options.skew.empty()) run.skew = parse_count("--skew", options.skew, {0, 2, ""});
    const std::vector<int> tokens =
        options.tokens.empty() ? std::vector<int>{moe->tokens_per_rank}
                               : parse_list("--tokens", options.tokens, [](auto option, auto word) {
                                   return parse_count(option, word, {0, 65536, ""});
                                 });
    for (const int num_tokens : tokens) {
      run.num_tokens = num_tokens;
      run.shape.max_tokens = std::max(num_tokens, 1);
      const LayerResult result = moe::measure_layer(run, [&](const std::string& what) {
        console.progress(fmt::format("{}, {} tokens: {}", name, num_tokens, what));
      });
      for (const LayerTimes& times : result.ways) is_fine &= times.finite;
      print_result(run, name, result, console);
      console.flush();
      results.push_back(to_json(run, name, result));
    }
  }
  Provenance provenance;
  stamp(provenance, console.command_line);
  Json file = {
      {"schema", "xstage.bench.moe"}, {"version", 1},         {"command", console.command_line},
      {"commit", provenance.commit},  {"date", utc_now()},    {"machine", machine_json()},
      {"seed", common.seed},          {"peer", options.peer}, {"repeats", common.num_repeats},
      {"rates", to_json(rates)},      {"results", results}};
  if (speaks && !options.out.empty()) {
    write_text_file(options.out, file.dump(1) + "\n",
                    options.force ? Overwrite::yes : Overwrite::no);
    console.print("wrote {}\n", options.out);
  }
  console.result("bench", std::move(file));
  console.next("xstage plan " + options.workloads[0]);
  return is_fine ? 0 : static_cast<int>(ErrorCategory::check_failed);
}

#else

int run_bench(const BenchMoeOptions& /*options*/, Console& /*console*/) {
  throw Error(ErrorCategory::not_possible,
              "this xstage was built without CUDA: it cannot run kernels");
}

#endif

}  // namespace

Action setup_bench_moe(CLI::App& app) {
  auto options = std::make_shared<BenchMoeOptions>();
  app.add_option("WORKLOAD", options->workloads, "MoE workloads: names that ship, or files")
      ->required()
      ->type_name("");
  app.add_option("--tokens", options->tokens, "Tokens of a rank; left out: what the workload says")
      ->type_name("LIST");
  app.add_option("--ranks", options->ranks, "Ranks that share the experts")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--device", options->devices,
                 "GPUs of the first ranks; the other ranks are emulated")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--peer", options->peer, "Where emulated ranks' memory lies: local or host")
      ->type_name("WHERE")
      ->capture_default_str();
  app.add_option("--ways", options->ways, "DISPATCH+COMBINE: pull, pull-each or push; pull or push")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--repeats", options->repeats, "Of each way, in turn")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--skew", options->skew,
                 "Popularity of the i-th expert is 1 / i^N; left out: what the workload says")
      ->type_name("N");
  app.add_option("--seed", options->seed, "Of routing and data")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--movement", options->movement, "Without the experts' products");
  app.add_option("--out", options->out, "Write the result to this file (JSON)")->type_name("FILE");
  app.add_flag("--force", options->force, "Replace that file");
  app.footer("example: xstage bench moe deepseek-v4-flash-moe-fp8 --tokens 2048,8192");
  return [options](Console& console) { return run_bench(*options, console); };
}

}  // namespace xstage::cli

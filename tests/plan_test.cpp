// The planner: choices, bounds that hold, what it refuses, what-ifs; routing; workload and cost
// files.
#include "xstage/plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/timeline.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage {
namespace {

const std::filesystem::path kSource = XSTAGE_SOURCE_DIR;

Workload shipped(const std::string& name) {
  return read_workload(kSource / "workloads" / (name + ".json"));
}
LinkProfile h200() {
  return read_link(kSource / "profiles/h200-nv18.json").profile;
}
TileCosts costs() {
  return read_costs(kSource / "profiles/costs/h200-estimate.json");
}

bool has_note(const Plan& plan, const std::string& words) {
  for (const auto& note : plan.notes) {
    if (note.find(words) != std::string::npos) return true;
  }
  return false;
}

const Candidate& named(const Plan& plan, const std::string& name) {
  for (const auto& c : plan.candidates) {
    if (c.name == name) return c;
  }
  throw std::runtime_error("no candidate " + name);
}

template <class Call>
std::string usage_error(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

// ---- plans ----

TEST(Plan, NoCandidateBeatsItsBoundAndTheChoiceIsTheFastest) {
  const LinkProfile link = h200();
  const TileCosts tile_costs = costs();
  for (const char* name : {"flux.1-dev-1024", "sd3.5-large-1024", "hunyuanimage-3-attention-1024",
                           "qwen-image-1328", "hunyuanimage-3-moe-fp8", "hidream-i1-moe-bf16"}) {
    for (const int ranks : {1, 2, 4}) {
      const Plan p = plan(shipped(name), link, tile_costs, ranks);
      ASSERT_FALSE(p.candidates.empty());
      EXPECT_FALSE(p.reason.empty());
      EXPECT_FALSE(p.shape.empty());
      EXPECT_TRUE(p.chosen().runnable);
      for (const auto& c : p.candidates) {
        EXPECT_GE(c.total_ns, c.bound_ns * (1 - 1e-9)) << name << " on " << ranks << ": " << c.name;
        EXPECT_GE(c.exposed_ns, 0);
        EXPECT_FALSE(c.held_by.empty());
        if (c.runnable) {
          EXPECT_LE(p.chosen().total_ns, c.total_ns * 1.006) << c.name;
        }
      }
    }
  }
}

// 7.1 MB at about 368 GB/s hide behind 200 us of attention; the last wave is local. A remote last
// wave leaves a tail.
TEST(Plan, FluxOnTwoRanksHidesTheExchange) {
  const Plan p = plan(shipped("flux.1-dev-1024"), h200(), costs(), 2);
  EXPECT_EQ(p.chosen().tile_order, TileOrder::remote_first);
  EXPECT_TRUE(p.chosen().split_tail);
  EXPECT_NEAR(p.sent_bytes, 2304.0 * 12 * 128 * 2, 1);
  EXPECT_LT(p.chosen().exposed_ns, 0.02 * p.chosen().total_ns);
  EXPECT_EQ(p.chosen().send.kind, StoreKind::tensor);  // rows of 256 bytes, pitched
  EXPECT_GT(named(p, "serial, NCCL + permutes").total_ns, named(p, "serial, copy engine").total_ns);
  EXPECT_GT(named(p, "completion-coupled").exposed_ns, p.chosen().exposed_ns);
  EXPECT_TRUE(p.estimated);
}

TEST(Plan, SaysWhenNothingCanBeGained) {
  const Plan less_than_a_wave = plan(shipped("flux.1-dev-1024"), h200(), costs(), 8);
  EXPECT_TRUE(has_note(less_than_a_wave, "less than a wave: 108 tiles"));
  EXPECT_TRUE(has_note(less_than_a_wave, "extrapolated"));
  PlanOptions slow;
  slow.drain_rate = 10;
  const Plan above_rate = plan(shipped("flux.1-dev-1024"), h200(), costs(), 2, slow);
  EXPECT_TRUE(has_note(above_rate, "demand above R"));
  EXPECT_NEAR(above_rate.chosen().total_ns, above_rate.drain_ns, 0.2 * above_rate.drain_ns);
  const Plan bound = plan(shipped("hunyuanvideo-720p"), h200(), costs(), 2);
  EXPECT_TRUE(has_note(bound, "compute-bound"));
}

TEST(Plan, FasterLinkIsNeverSlower) {
  double before = INFINITY;
  for (const double rate : {20.0, 60.0, 200.0, 372.0, 900.0}) {
    PlanOptions options;
    options.drain_rate = rate;
    const Plan p = plan(shipped("flux.1-dev-1024"), h200(), costs(), 4, options);
    EXPECT_LE(p.chosen().total_ns, before * 1.001) << rate;
    before = p.chosen().total_ns;
  }
}

TEST(Plan, WithoutCapacityOnlyClosedForms) {
  LinkProfile link = h200();
  for (auto& kind : link.kinds) {
    kind.params.capacity_mean_bytes.reset();
    kind.params.capacity_slowest_bytes.reset();
  }
  for (const char* name : {"flux.1-dev-1024", "hunyuanimage-3-moe-fp8"}) {
    const Plan p = plan(shipped(name), link, costs(), 2);
    EXPECT_TRUE(has_note(p, "no stage capacity"));
    for (const auto& c : p.candidates) EXPECT_NE(c.evidence, Evidence::simulated) << c.name;
  }
  PlanOptions what_if;
  what_if.capacity_bytes = 8192;
  EXPECT_EQ(plan(shipped("flux.1-dev-1024"), link, costs(), 2, what_if).chosen().evidence,
            Evidence::simulated);
}

TEST(Plan, RefusesWhatCannotBe) {
  const auto run = [](const std::string& name, int ranks) {
    return usage_error([&] { (void)plan(shipped(name), h200(), costs(), ranks); });
  };
  EXPECT_NE(run("hidream-i1-moe-bf16", 8).find("legal 1, 2, 4 (4 experts"), std::string::npos);
  EXPECT_NE(run("flux.1-dev-1024", 73).find("legal 1..72"), std::string::npos);
  EXPECT_NE(run("flux.1-dev-1024", 0).find("legal 1..72"), std::string::npos);
  EXPECT_NE(run("flux.1-dev-1024", 25).find("legal 1..24"), std::string::npos);
  PlanOptions options;
  options.drain_rate = -5;
  usage_error([&] { (void)plan(shipped("flux.1-dev-1024"), h200(), costs(), 2, options); });
  options = {};
  options.kind = StoreKind::load;
  usage_error([&] { (void)plan(shipped("flux.1-dev-1024"), h200(), costs(), 2, options); });
  Workload odd = shipped("hunyuanimage-3-moe-fp8");
  std::get<MoeWorkload>(odd.op).top_k = 65;
  usage_error([&] { (void)plan(odd, h200(), costs(), 2); });
}

TEST(Plan, UnevenHeadsAreNamed) {
  const Plan p = plan(shipped("sd3.5-large-1024"), h200(), costs(), 4);  // 38 heads
  EXPECT_TRUE(has_note(p, "38 heads on 4 ranks: the busiest has 10"));
}

// ---- what the planner rests on ----

// Without stores the simulator's kernel is the closed form: waves of equal tiles.
TEST(SimulateKernels, AttentionWithoutExchangeIsTheClosedForm) {
  AttentionRun run;
  run.workload.sequence = 4608;
  run.workload.num_heads = 24;
  run.cost.step_ns = 1900;
  run.cost.tile_ns = 2000;
  run.num_ranks = 2;
  run.local_only = true;
  SimMachine machine;
  machine.link = h200().kind(StoreKind::bulk).params;
  // 432 tiles on 132 SMs: 4 rounds of 29 steps and an epilogue.
  EXPECT_DOUBLE_EQ(simulate_attention(machine, {}, run).total_ns, 4 * (29 * 1900.0 + 2000));
}

TEST(SimulateKernels, AttentionSendsWhatTheOrderSays) {
  AttentionRun run;
  run.workload.sequence = 1000;
  run.workload.num_heads = 7;
  run.workload.replicated_prefix = 60;
  run.cost.step_ns = 1900;
  run.num_ranks = 3;
  SimMachine machine;
  machine.link = h200().kind(StoreKind::bulk).params;
  SimOptions options;
  options.check_every_event = true;
  const SimReport report = simulate_attention(machine, {}, run, options);
  // Heads 3, 2, 2. Sharded rows 940 = 314 + 313 + 313; text rows go to both peers.
  const double row = 256;
  EXPECT_DOUBLE_EQ(report.links[0].bytes, 3 * (940 - 314 + 120) * row);
  EXPECT_DOUBLE_EQ(report.links[1].bytes, 2 * (940 - 313 + 120) * row);
}

TEST(Route, CountsAddUpAndRepeat) {
  MoeWorkload w;
  w.tokens_per_rank = 4096;
  w.hidden = 4096;
  w.intermediate = 2048;
  w.num_experts = 256;
  w.top_k = 6;
  for (const double skew : {0.0, 0.6, 2.0}) {
    w.skew = skew;
    const MoeRouting a = route(w, 8);
    const MoeRouting b = route(w, 8);
    EXPECT_EQ(a.tokens, b.tokens);
    std::int64_t sum = 0;
    for (const auto tokens : a.tokens) sum += tokens;
    EXPECT_EQ(sum, 4096 * 8 * 6) << skew;
  }
  // Balanced: a token's six experts lie on 8 (1 - (7/8)^6) ranks on average, nearly (they differ).
  w.skew = 0;
  EXPECT_NEAR(route(w, 8).unique_share, 8 * (1 - std::pow(7.0 / 8, 6)) / 6, 0.01);
  EXPECT_NEAR(route(w, 2).unique_share, 2 * (1 - std::pow(0.5, 6)) / 6, 0.01);
  w.tokens_per_rank = 0;
  EXPECT_EQ(route(w, 8).tokens[0], 0);
  // As many choices as experts, and a skew that makes most of them rare.
  w.tokens_per_rank = 100;
  w.num_experts = 32;
  w.top_k = 32;
  w.skew = 2;
  for (const auto tokens : route(w, 2).tokens) EXPECT_EQ(tokens, 200);
}

TEST(SimulateKernels, MoeSendsEveryRemoteRowInEverySchedule) {
  MoeRun run;
  run.workload.tokens_per_rank = 300;
  run.workload.hidden = 1024;
  run.workload.intermediate = 512;
  run.workload.num_experts = 16;
  run.workload.top_k = 4;
  run.workload.num_shared_experts = 1;
  run.workload.skew = 0.8;
  run.workload.dtype = DataType::bf16;
  run.cost.step_ns = 1000;
  run.cost.tile_ns = 500;
  run.memory_rate = 4000;
  SimMachine machine;
  machine.link = h200().kind(StoreKind::bulk).params;
  SimOptions options;
  options.check_every_event = true;
  for (const int ranks : {2, 4}) {
    run.num_ranks = ranks;
    const MoeRouting routing = route(run.workload, ranks);
    double rows = 0;  // received by rank 0's experts
    for (int e = 0; e < routing.experts_per_rank; ++e)
      rows += routing.tokens[static_cast<std::size_t>(e)];
    for (const MoeSchedule schedule :
         {MoeSchedule::wave, MoeSchedule::interleaved, MoeSchedule::lag}) {
      run.schedule = schedule;
      const SimReport report = simulate_moe(machine, {}, run, routing, options);
      // Egress of rank 0: results of its experts for others, and tokens that others' experts pull.
      const double remote = static_cast<double>(ranks - 1) / ranks;
      double pulled = 0;
      for (std::size_t e = static_cast<std::size_t>(routing.experts_per_rank);
           e < routing.tokens.size(); ++e) {
        pulled += routing.tokens[e] / static_cast<double>(ranks);
      }
      EXPECT_NEAR(report.links[0].bytes, (rows * remote + pulled) * 1024 * 2,
                  0.002 * report.links[0].bytes);
      EXPECT_GT(report.total_ns, 0);
    }
  }
}

TEST(SimulateKernels, MoeWithoutTokensEnds) {
  MoeRun run;
  run.workload.tokens_per_rank = 0;
  run.workload.hidden = 1024;
  run.workload.intermediate = 512;
  run.workload.num_experts = 16;
  run.workload.top_k = 4;
  run.cost.step_ns = 1000;
  run.memory_rate = 4000;
  run.num_ranks = 2;
  SimMachine machine;
  machine.link = h200().kind(StoreKind::bulk).params;
  for (const MoeSchedule schedule :
       {MoeSchedule::wave, MoeSchedule::interleaved, MoeSchedule::lag}) {
    run.schedule = schedule;
    EXPECT_DOUBLE_EQ(simulate_moe(machine, {}, run, route(run.workload, 2)).total_ns,
                     machine.barrier_ns);
  }
}

// ---- files ----

TEST(WorkloadFiles, AllThatShipAreSoundAndSayWhereTheyComeFrom) {
  int num = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "workloads")) {
    if (entry.path().extension() != ".json") continue;
    std::vector<std::string> warnings;
    const Workload w = read_workload(entry.path(), &warnings);
    EXPECT_TRUE(warnings.empty()) << entry.path();
    EXPECT_EQ(w.name, entry.path().stem().string());
    EXPECT_FALSE(w.source.empty()) << w.name;
    EXPECT_EQ(format_workload(parse_workload(format_workload(w), "x")), format_workload(w));
    ++num;
  }
  EXPECT_GE(num, 20);
}

void expect_bad_workload(const std::string& text, const std::string& place,
                         const std::string& reason) {
  try {
    (void)parse_workload(text, "w.json");
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.category(), ErrorCategory::bad_file) << what;
    EXPECT_EQ(what.rfind("w.json:", 0), 0u) << what;
    EXPECT_NE(what.find(place), std::string::npos) << what;
    EXPECT_NE(what.find(reason), std::string::npos) << what;
  }
}

std::string attention_file(const std::string& fields) {
  return R"({"schema": "xstage.workload", "version": 1, "name": "n", "attention": {)" + fields +
         "}}";
}
std::string moe_file(const std::string& fields) {
  return R"({"schema": "xstage.workload", "version": 1, "name": "n", "moe": {)" + fields + "}}";
}

TEST(WorkloadFiles, WrongOnesAreRefusedWithFileFieldAndRange) {
  expect_bad_workload("", "w.json:", "");
  expect_bad_workload("{", "1:", "");
  expect_bad_workload("[]", "/", "object");
  expect_bad_workload(R"({"schema": "xstage.link", "version": 1})", "/schema", "not a workload");
  expect_bad_workload(R"({"schema": "xstage.workload", "version": 2})", "/version", "version 2");
  expect_bad_workload(R"({"schema": "xstage.workload", "version": 1, "name": "n"})", "w.json:/",
                      "exactly one");
  expect_bad_workload(attention_file(R"("heads": 24, "head_dim": 128)"), "/attention", "sequence");
  expect_bad_workload(attention_file(R"("sequence": 0, "heads": 24, "head_dim": 128)"),
                      "/attention/sequence", "1");
  expect_bad_workload(attention_file(R"("sequence": 10, "heads": 0, "head_dim": 128)"),
                      "/attention/heads", "1 to 1024");
  expect_bad_workload(attention_file(R"("sequence": -4, "heads": 4, "head_dim": 128)"),
                      "/attention/sequence", "-4");
  expect_bad_workload(attention_file(R"("sequence": 1e99, "heads": 4, "head_dim": 128)"),
                      "/attention/sequence", "");
  expect_bad_workload(attention_file(R"("sequence": 9, "heads": 4, "head_dim": 96)"),
                      "/attention/head_dim", "64, 128");
  expect_bad_workload(attention_file(R"("sequence": 9, "heads": 4, "kv_heads": 3, "head_dim": 64)"),
                      "/attention/kv_heads", "divisors");
  expect_bad_workload(
      attention_file(R"("sequence": 9, "heads": 4, "head_dim": 64, "dtype": "fp8")"),
      "/attention/dtype", "bf16");
  expect_bad_workload(
      attention_file(R"("sequence": 9, "heads": 4, "head_dim": 64, "replicated_suffix": 10)"),
      "/attention/replicated_suffix", "0 to 9");
  expect_bad_workload(attention_file(R"("sequence": 9, "sequence": 9, "heads": 4, "head_dim": 64)"),
                      "sequence", "");
  expect_bad_workload(
      attention_file(R"("batch": 60000, "sequence": 9000000, "heads": 400, "head_dim": 64)"),
      "w.json:/", "4e9");
  const std::string rest = R"(, "hidden": 1024, "intermediate": 512)";
  expect_bad_workload(moe_file(R"("tokens_per_rank": 4, "experts": 8, "top_k": 9)" + rest),
                      "/moe/top_k", "1 to 8");
  expect_bad_workload(moe_file(R"("tokens_per_rank": 4, "experts": 0, "top_k": 1)" + rest),
                      "/moe/experts", "1 to 4096");
  expect_bad_workload(moe_file(R"("tokens_per_rank": -1, "experts": 8, "top_k": 1)" + rest),
                      "/moe/tokens_per_rank", "0 to");
  expect_bad_workload(
      moe_file(R"("tokens_per_rank": 4, "experts": 8, "top_k": 1, "skew": 3)" + rest), "/moe/skew",
      "0");
  expect_bad_workload(
      moe_file(R"("tokens_per_rank": 4, "experts": 8, "top_k": 1, "dtype": "int4")" + rest),
      "/moe/dtype", "fp8");
  std::string deep(100'000, '[');
  expect_bad_workload(deep, "w.json:", "");
}

TEST(WorkloadFiles, UnknownFieldsAreWarnings) {
  std::vector<std::string> warnings;
  (void)parse_workload(attention_file(R"("sequence": 9, "heads": 4, "head_dim": 64, "haeds": 3)"),
                       "w.json", &warnings);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("haeds"), std::string::npos);
}

TEST(CostFiles, RoundTripAndLookUp) {
  const TileCosts c = costs();
  EXPECT_TRUE(c.estimated);
  EXPECT_FALSE(c.source.empty());
  EXPECT_EQ(format_costs(parse_costs(format_costs(c), "x")), format_costs(c));
  EXPECT_GT(c.attention_for(DataType::bf16, 64).step_ns, 0);
  usage_error([&] { (void)c.attention_for(DataType::bf16, 96); });
  usage_error([&] { (void)c.moe_for(DataType::fp16); });
  const ExchangeCost line{"e", "l", "s", {{1000, 10}, {2000, 30}, {4000, 40}}};
  EXPECT_DOUBLE_EQ(exchange_ns(line, 0), 0);
  EXPECT_DOUBLE_EQ(exchange_ns(line, 500), 10);
  EXPECT_DOUBLE_EQ(exchange_ns(line, 1500), 20);
  EXPECT_DOUBLE_EQ(exchange_ns(line, 6000), 50);
}

TEST(ChromeTrace, IsJsonWithOneEventPerSpan) {
  Timeline timeline;
  timeline.name = "a \"name\"";
  timeline.source = "simulated";
  timeline.spans = {{0, 3, SpanKind::compute, 7, 1000, 2500},
                    {1, 0, SpanKind::issue, 7, 2500, 2600}};
  const auto json = nlohmann::json::parse(io::format_chrome_trace(timeline));
  int num_spans = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    if (num_spans == 0) {
      EXPECT_EQ(event["name"], "compute");
      EXPECT_DOUBLE_EQ(event["ts"], 1.0);
      EXPECT_DOUBLE_EQ(event["dur"], 1.5);
    }
    ++num_spans;
  }
  EXPECT_EQ(num_spans, 2);
  EXPECT_EQ(json["otherData"]["name"], "a \"name\"");
}

}  // namespace
}  // namespace xstage

// xstage plan from outside: screens, JSON, timelines, what-ifs, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run.hpp"
#include "temporary_folder.hpp"

namespace xstage::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kLink = (fs::path(XSTAGE_SOURCE_DIR) / "profiles" / "h200-nv18.json").string();

class PlanCli : public FolderTest {};

TEST_F(PlanCli, ScreenNamesShapeCandidatesChoiceAndNextStep) {
  const auto run = run_tool({"plan", "flux.1-dev-1024", "--link", kLink, "--ranks", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, Not(HasSubstr("estimated")));
  const auto moe = run_tool({"plan", "hunyuanimage-3-moe-fp8", "--link", kLink, "--ranks", "2"});
  EXPECT_THAT(moe.out, HasSubstr("estimated, not measured"));
  EXPECT_THAT(run.err, IsEmpty());
  EXPECT_THAT(run.out, AllOf(HasSubstr("432 tiles = 3.27 waves of 132 SMs, sends 7.1 MB"),
                             HasSubstr("* fused"), HasSubstr("serial, NCCL + permutes"),
                             HasSubstr("choice: "), HasSubstr("send: "), HasSubstr("next: ")));
}

TEST_F(PlanCli, JsonHoldsWhatTheScreenShows) {
  const auto run =
      run_tool({"plan", "hunyuanimage-3-moe-fp8", "--link", kLink, "--ranks", "8", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = json::parse(run.out);
  EXPECT_EQ(result["schema"], "xstage.plan");
  EXPECT_EQ(result["ranks"], 8);
  EXPECT_TRUE(result["costs"]["estimated"]);
  bool has_choice = false;
  for (const auto& c : result["candidates"]) {
    has_choice = has_choice || c["name"] == result["choice"];
    EXPECT_GE(c["total_ns"].get<double>(), c["bound_ns"].get<double>() * (1 - 1e-9));
    EXPECT_TRUE(c["schedule"].is_string());
  }
  EXPECT_TRUE(has_choice);
}

TEST_F(PlanCli, TimelineIsAChromeTraceAndIsNotReplacedUnasked) {
  const std::string file = (folder_ / "t.json").string();
  const std::vector<std::string> command = {"plan", "flux.1-dev-1024", "--link", kLink, "--ranks",
                                            "2",    "--timeline",      file};
  ASSERT_EQ(run_tool(command).exit_code, 0);
  std::ifstream stream(file);
  const json trace = json::parse(stream);
  EXPECT_GT(trace["traceEvents"].size(), 1000u);
  const auto again = run_tool(command);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("--force"));
}

TEST_F(PlanCli, RefusalsNameTheLegalValues) {
  struct {
    std::vector<std::string> arguments;
    int exit_code;
    const char* words;
  } cases[] = {
      {{"hidream-i1-moe-bf16", "--ranks", "8"}, 2, "legal 1, 2, 4"},
      {{"flux.1-dev-1024", "--ranks", "73"}, 2, "1..72"},
      {{"flux.1-dev-1024", "--ranks", "0"}, 2, "1..72"},
      {{"flux.1-dev-1024", "--ranks", "two"}, 2, "two"},
      {{"flux.1-dev-1024", "--ranks", "25"}, 2, "1..24"},
      {{"flux.1-dev-1024", "--link-rate", "-3"}, 2, "--link-rate"},
      {{"flux.1-dev-1024", "--link-rate", "nan"}, 2, "--link-rate"},
      {{"flux.1-dev-1024", "--capacity", "0"}, 2, "--capacity"},
      {{"flux.1-dev-1024", "--kind", "teleport"}, 2, "teleport"},
      {{"no-such-model"}, 2, "flux.1-dev-1024"},
      {{"flux.1-dev-1024", "--costs", "nothing"}, 2, "h200"},
      {{"/nowhere/w.json"}, 6, "/nowhere/w.json"},
      {{write(
           "zero.json",
           R"({"schema": "xstage.workload", "version": 1, "name": "z", "attention": {"sequence": 9, "heads": 0, "head_dim": 64}})")},
       6,
       "/attention/heads"},
      {{write(
           "topk.json",
           R"({"schema": "xstage.workload", "version": 1, "name": "t", "moe": {"tokens_per_rank": 8, "hidden": 1024, "intermediate": 512, "experts": 4, "top_k": 5}})")},
       6,
       "/moe/top_k"},
  };
  for (auto& c : cases) {
    std::vector<std::string> command = {"plan"};
    command.insert(command.end(), c.arguments.begin(), c.arguments.end());
    command.insert(command.end(), {"--link", kLink});
    const auto run = run_tool(command);
    EXPECT_EQ(run.exit_code, c.exit_code) << c.arguments[0] << ": " << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("error: "), HasSubstr(c.words))) << c.arguments[0];
  }
}

TEST_F(PlanCli, ListShowsWhatShips) {
  const auto run = run_tool({"plan", "--list"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("flux.1-dev-1024"), HasSubstr("hunyuanimage-3-moe-fp8"),
                             Not(HasSubstr("error"))));
}

}  // namespace
}  // namespace xstage::test

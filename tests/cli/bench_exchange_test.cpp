// xstage bench exchange from outside, on any machine: predictions, refusals; and the judgement of
// measurements that are made up here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/exchange_view.hpp"
#include "cli/run.hpp"
#include "temporary_folder.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"

namespace xstage::test {
namespace {

namespace fs = std::filesystem;
using cli::ExchangeCase;
using cli::ExchangePredictions;
using cli::ExchangeResult;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kHostLink =
    (fs::path(XSTAGE_SOURCE_DIR) / "profiles" / "h200-host-pcie5.json").string();

class BenchExchange : public FolderTest {};

json read(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

TEST_F(BenchExchange, PredictsWithoutAGpuAndNamesWhatItRestsOn) {
  const auto run = run_tool({"bench", "exchange", "2048x16", "--ranks", "2,8", "--peers",
                             "host,local", "--link", kHostLink, "--predict", path("p.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json file = read(path("p.json"));
  EXPECT_EQ(file["schema"], "xstage.exchange_predictions");
  EXPECT_EQ(file["link_sha256"], load_link(kHostLink).profile.hash);
  EXPECT_EQ(file["costs"], "h200");
  ASSERT_EQ(file["cases"].size(), 4u);
  for (const auto& one : file["cases"]) {
    const bool is_local = one["case"].get<std::string>().ends_with("local_ghosts");
    for (const auto& way : one["ways"]) {
      EXPECT_GT(way["alone_ns"], 0);
      const bool sends = !is_local && way["way"] != "alone" && way["way"] != "burst-local";
      if (sends) {
        EXPECT_GT(way["increment_ns"], 0) << one["case"] << way;
        EXPECT_GT(way["coupled_ns"], 0);
      } else {
        EXPECT_EQ(way["increment_ns"], 0) << one["case"] << way;
      }
      EXPECT_EQ(way["unbounded_ns"], 0);
    }
  }
  const auto kept =
      run_tool({"bench", "exchange", "2048x16", "--link", kHostLink, "--predict", path("p.json")});
  EXPECT_EQ(kept.exit_code, 2);
  EXPECT_THAT(kept.err, HasSubstr("exists"));
}

TEST_F(BenchExchange, TheSamePredictionTwice) {
  std::string texts[2];
  for (auto& text : texts) {
    const auto run = run_tool({"bench", "exchange", "2048x16", "--link", kHostLink, "--predict",
                               path("p.json"), "--force", "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    text = read(path("p.json"))["cases"].dump();
  }
  EXPECT_EQ(texts[0], texts[1]);
}

struct Refusal {
  std::vector<std::string> arguments;
  int exit_code;
  std::string words;
};

TEST_F(BenchExchange, RefusesWhatCannotBe) {
  std::ofstream(path("bad.json")) << R"({"schema": "xstage.exchange_predictions", "version": 1,
    "link_sha256": "", "costs_sha256": "", "cases": [{"case": "x", "ways": [{"way": "push"}]}]})";
  const Refusal refusals[] = {
      {{"--ways", "push,brust"}, 2, "--ways brust: legal alone, push"},
      {{"--ways", "push,brust"}, 2, "registers"},
      {{"--peers", "moon"}, 2, "host, local, peer"},
      {{"2048x4", "--ranks", "8"}, 2, "legal 1..4"},
      {{"--ranks", "0"}, 2, "legal 1..72"},
      {{"deepseek-v4-pro-moe-fp8"}, 2, "is no attention"},
      {{"1x2x3x4x5"}, 2, "ROWSxHEADS"},
      {{"1x128x4x80"}, 2, "head_dim"},
      {{"--predictions", path("bad.json")}, 6, "/cases/0/ways/0"},
      {{"--predictions", path("none.json")}, 6, "none.json"},
      {{"--out", path("bad.json")}, 2, "exists"},
  };
  for (const Refusal& refusal : refusals) {
    std::vector<std::string> arguments = {"bench", "exchange", "--link", kHostLink};
    arguments.insert(arguments.end(), refusal.arguments.begin(), refusal.arguments.end());
    const auto run = run_tool(arguments);
    EXPECT_EQ(run.exit_code, refusal.exit_code) << run.err;
    EXPECT_THAT(run.err, HasSubstr(refusal.words));
  }
}

// Five rounds of a way that takes `ns`, with a little noise that all ways share.
ExchangeSeries series(const std::string& name, double ns) {
  ExchangeSeries s;
  s.name = name;
  for (int i = 0; i < 10; ++i) {
    s.done_ns.push_back(ns + 10 * (i % 3));
    s.sent_ns.push_back(ns - 500 + 10 * (i % 3));
    s.clock_mhz.push_back(1700);
  }
  return s;
}

ExchangeResult judged(double alone, double push, double burst, std::int64_t wrong_bytes = 0) {
  ExchangeCase c = cli::parse_exchange_case("4608x24");
  c.candidates = cli::exchange_candidates(c.workload, {"push", "burst"});
  ExchangeMeasurement m;
  m.num_sms = 132;
  m.num_tiles = 432;
  m.sent_bytes = 7077888;
  m.emulated = true;
  m.series = {series("alone", alone), series("push", push), series("burst", burst)};
  m.series[2].wrong_bytes = wrong_bytes;
  static ExchangePredictions none;
  return cli::judge_exchange(c, m, none, nullptr);
}

TEST(ExchangeVerdict, GainIsMeasuredAgainstTheCeiling) {
  const ExchangeResult r = judged(200'000, 240'000, 202'000);
  EXPECT_TRUE(r.verdict.gains);
  EXPECT_EQ(r.verdict.best_fused, "burst");
  EXPECT_EQ(r.verdict.best_unfused, "push");
  EXPECT_THAT(r.verdict.text, AllOf(HasSubstr("1.188"), HasSubstr("perfect hiding would be 1.200"),
                                    HasSubstr("99.0 %")));
  ASSERT_EQ(r.rows.size(), 3u);
  EXPECT_DOUBLE_EQ(r.rows[2].over_alone.value, 2000);
  EXPECT_DOUBLE_EQ(r.rows[1].over_alone.value, 40'000);
  EXPECT_TRUE(r.all_right);
}

TEST(ExchangeVerdict, NoGainIsSaid) {
  for (const double burst : {240'000.0, 250'000.0}) {
    const ExchangeResult r = judged(200'000, 240'000, burst);
    EXPECT_FALSE(r.verdict.gains);
    EXPECT_THAT(r.verdict.text, HasSubstr("no gain"));
  }
}

TEST(ExchangeVerdict, WrongBytesAreNotAllRight) {
  const ExchangeResult r = judged(200'000, 240'000, 202'000, 16);
  EXPECT_FALSE(r.all_right);
  EXPECT_EQ(cli::exchange_json(r)["ways"][2]["wrong_bytes"], 16);
}

TEST(ExchangeVerdict, AWayThatFellBackIsNoFusedWay) {
  ExchangeResult r = judged(200'000, 240'000, 202'000);
  ExchangeMeasurement m = r.measured;
  m.series[2].fell_back = "causal";
  static ExchangePredictions none;
  r = cli::judge_exchange(r.request, m, none, nullptr);
  EXPECT_EQ(r.verdict.best_fused, "");
  EXPECT_FALSE(r.verdict.gains);
}

}  // namespace
}  // namespace xstage::test

// xstage bench attention from outside, on machines without a GPU: what is refused and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run.hpp"

namespace xstage::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// No GPU is visible, whatever the machine has.
Outcome bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "attention"});
  RunOptions options;
  options.environment = {"CUDA_VISIBLE_DEVICES="};
  return run_tool(arguments, options);
}

TEST(BenchAttentionCli, WithoutAGpuSaysWhyAndEndsWithThree) {
  const auto run = bench({"--shapes", "1x4608x24"});
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("xstage: error: "));
  const auto as_json = bench({"--json"});
  EXPECT_EQ(as_json.exit_code, 3);
  EXPECT_EQ(json::parse(as_json.out)["error"]["category"], "not_possible");
}

TEST(BenchAttentionCli, WorkloadsAreReadBeforeTheGpuIsLookedFor) {
  EXPECT_EQ(bench({"flux.1-dev-1024", "--ranks", "2"}).exit_code, 3);
  const auto unknown = bench({"flux-9"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("flux-9"));
  const auto moe = bench({"hunyuanimage-3-moe-fp8"});
  EXPECT_EQ(moe.exit_code, 2);
  EXPECT_THAT(moe.err, HasSubstr("mixture of experts"));
  const auto ranks = bench({"flux.1-dev-1024", "--ranks", "5"});
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_THAT(ranks.err, AllOf(HasSubstr("--ranks 5"), HasSubstr("24 heads")));
  EXPECT_EQ(bench({"--ranks", "2"}).exit_code, 2);
}

TEST(BenchAttentionCli, ShapesThatDoNotExistAreNamed) {
  for (const char* word :
       {"1x4608", "1x4608x24x128x2", "0x4608x24", "1x-5x24", "1x4608x24:fast", "1x4608x24:kv",
        "1x4608x24:kv5", "1x4608x24x96", "1x4608x24:fp8", "x", "65535x16777216x65535"}) {
    const auto run = bench({"--shapes", word});
    EXPECT_EQ(run.exit_code, 2) << word << ": " << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("--shapes"), HasSubstr("legal"))) << word;
  }
  EXPECT_EQ(bench({"--shapes", "1x4608x24,"}).exit_code, 2);
  EXPECT_EQ(bench({"--shapes", "1x4608x24x64:kv8:causal:fp16"}).exit_code, 3);
}

TEST(BenchAttentionCli, OtherValuesAreChecked) {
  for (const auto& [option, value] :
       {std::pair{"--rounds", "-1"}, std::pair{"--seconds", "0"}, std::pair{"--seed", "x"},
        std::pair{"--device", "-1"}, std::pair{"--ranks", "0"}}) {
    const auto run = bench({option, value});
    EXPECT_EQ(run.exit_code, 2) << option;
    EXPECT_THAT(run.err, HasSubstr(option));
  }
}

TEST(BenchAttentionCli, FilesThatExistAreKept) {
  std::string name = (std::filesystem::temp_directory_path() / "xstage-bench.XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data());
  const std::string file = (folder / "costs.json").string();
  std::ofstream(file) << "mine";
  for (const char* option : {"--costs", "--out"}) {
    const auto run = bench({option, file});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, AllOf(HasSubstr(file), HasSubstr("--force")));
    EXPECT_EQ(bench({option, file, "--force"}).exit_code, 3);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace xstage::test

// The tool under launchers: `xstage doctor` gives the same verdict on every rank, and one rank
// speaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "processes.hpp"

namespace xstage {
namespace {

using testing_support::Outcome;
using testing_support::run_ranks;
using Variables = std::map<std::string, std::string>;

// Exit code, then what came on standard output.
std::string run_doctor(const Variables& variables) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const std::string command = std::string(XSTAGE_TOOL_PATH) + " doctor --json 2>/dev/null";
  FILE* output = ::popen(command.c_str(), "r");
  if (output == nullptr) return "no pipe";
  std::string text;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), output)) > 0;) {
    text.append(buffer.data(), got);
  }
  const int status = ::pclose(output);
  return std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1) + "\n" + text;
}

Variables variables_of(const std::string& launcher, int rank, int num_ranks) {
  const std::string r = std::to_string(rank);
  const std::string n = std::to_string(num_ranks);
  const std::string job = std::to_string(::getppid()) + launcher;
  if (launcher == "torchrun") {
    return {{"RANK", r},          {"WORLD_SIZE", n},
            {"LOCAL_RANK", r},    {"LOCAL_WORLD_SIZE", n},
            {"MASTER_ADDR", job}, {"MASTER_PORT", "29500"}};
  }
  if (launcher == "mpirun") {
    return {{"OMPI_COMM_WORLD_RANK", r},
            {"OMPI_COMM_WORLD_SIZE", n},
            {"OMPI_COMM_WORLD_LOCAL_RANK", r},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", n},
            {"PMIX_NAMESPACE", job}};
  }
  return {{"SLURM_PROCID", r},   {"SLURM_NTASKS", n},    {"SLURM_LOCALID", r},
          {"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_NODES", "1"}};
}

class DoctorUnder : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Launchers, DoctorUnder, ::testing::Values("torchrun", "mpirun", "srun"));

TEST_P(DoctorUnder, AllRanksEndAlikeAndRankZeroSpeaks) {
  const auto outcomes =
      run_ranks(3, [&](int rank) { return run_doctor(variables_of(GetParam(), rank, 3)); });
  const std::string code = outcomes[0].text.substr(0, outcomes[0].text.find('\n'));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text.substr(0, outcome.text.find('\n')), code) << outcome.text;
  }
  EXPECT_NE(code, "2");
  EXPECT_NE(code, "-1");
  EXPECT_EQ(outcomes[1].text, code + "\n");
  EXPECT_EQ(outcomes[2].text, code + "\n");
}

TEST(DoctorUnder, AWrongVariableIsAUsageError) {
  Variables variables = variables_of("torchrun", 0, 2);
  variables["RANK"] = std::to_string(5);
  const auto outcomes = run_ranks(1, [&](int) { return run_doctor(variables); });
  EXPECT_EQ(outcomes[0].text[0], '2');
}

}  // namespace
}  // namespace xstage

// What launchers say, and what wrong or missing variables lead to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "xstage/error.hpp"
#include "xstage/group.hpp"

namespace xstage {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchInfo read(const Variables& variables) {
  return read_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Error error_of(const Variables& variables) {
  try {
    (void)read(variables);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCategory::check_failed, "accepted");
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "3"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "host"},
                             {"MASTER_PORT", "29500"},
                             {"GROUP_WORLD_SIZE", "1"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Launch, NothingMeansOneRank) {
  const LaunchInfo launch = read({});
  EXPECT_EQ(launch.num_ranks, 1);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.launcher, "none");
}

TEST(Launch, Torchrun) {
  const LaunchInfo launch = read(kTorchrun);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.num_ranks, 4);
  EXPECT_EQ(launch.local_rank, 3);
  EXPECT_EQ(launch.launcher, "torchrun");
}

TEST(Launch, Mpirun) {
  const LaunchInfo open_mpi = read({{"OMPI_COMM_WORLD_RANK", "1"},
                                    {"OMPI_COMM_WORLD_SIZE", "2"},
                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                    {"SLURM_PROCID", "0"},
                                    {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(open_mpi.launcher, "mpirun");
  EXPECT_EQ(open_mpi.rank, 1);
  const LaunchInfo hydra = read({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "5"}});
  EXPECT_EQ(hydra.rank, 5);
  EXPECT_EQ(hydra.num_ranks, 8);
  EXPECT_EQ(hydra.local_rank, 5);
}

TEST(Launch, Srun) {
  const LaunchInfo launch = read({{"SLURM_PROCID", "2"},
                                  {"SLURM_NTASKS", "4"},
                                  {"SLURM_LOCALID", "2"},
                                  {"SLURM_JOB_ID", "77"},
                                  {"SLURM_STEP_ID", "0"},
                                  {"SLURM_STEP_NUM_NODES", "1"}});
  EXPECT_EQ(launch.launcher, "srun");
  EXPECT_EQ(launch.rank, 2);
  EXPECT_THAT(launch.job, HasSubstr("77"));
}

TEST(Launch, AnAllocationWithoutSrunIsOneRank) {
  EXPECT_EQ(read({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}}).num_ranks, 1);
}

TEST(Launch, JobsAreToldApartAndRanksAgree) {
  EXPECT_EQ(read(kTorchrun).job, read(with(kTorchrun, "RANK", "0")).job);
  EXPECT_NE(read(kTorchrun).job, read(with(kTorchrun, "MASTER_PORT", "29501")).job);
  const Variables unnamed = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  EXPECT_EQ(read(unnamed).job, read(with(unnamed, "PMI_RANK", "1")).job);
}

TEST(Launch, MissingVariableIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    const Error error = error_of(without(kTorchrun, name));
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_THAT(error.what(), HasSubstr(std::string(name) + " is not set"));
  }
}

TEST(Launch, WrongVariableIsNamedWithWhatIsLegal) {
  EXPECT_THAT(error_of(with(kTorchrun, "RANK", "4")).what(), HasSubstr("RANK=4: legal 0..3"));
  for (const char* bad : {"-1", "two", "1.5", "99999999999999999999", "3 "}) {
    EXPECT_EQ(error_of(with(kTorchrun, "RANK", bad)).category(), ErrorCategory::usage) << bad;
  }
  EXPECT_THAT(error_of(with(kTorchrun, "WORLD_SIZE", "0")).what(), HasSubstr("WORLD_SIZE=0"));
}

TEST(Launch, SeveralMachinesAreNotPossible) {
  for (const Variables& variables :
       {with(kTorchrun, "WORLD_SIZE", "16"),
        Variables{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_NODES", "2"}},
        Variables{{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}}) {
    EXPECT_EQ(error_of(variables).category(), ErrorCategory::not_possible);
  }
}

TEST(Launch, TooManyRanks) {
  const Error error = error_of({{"RANK", "0"}, {"WORLD_SIZE", "73"}});
  EXPECT_EQ(error.category(), ErrorCategory::usage);
  EXPECT_THAT(error.what(), HasSubstr("1..72"));
}

}  // namespace
}  // namespace xstage

// Reads what torchrun, mpirun or srun tell a process. Pure but for the last function.
#include <sys/types.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "xstage/error.hpp"
#include "xstage/group.hpp"

namespace xstage {
namespace {

constexpr int kMostRanks = 72;

[[noreturn]] void bad(const std::string& message) {
  throw Error(ErrorCategory::usage, message);
}

// One launcher's words for the same things. nullptr: it has none.
struct Words {
  const char* launcher;
  const char* rank;
  const char* num_ranks;
  const char* local_rank;
  const char* num_local_ranks;
  const char* num_hosts;
  const char* job[3];  // together they name the job
};

constexpr Words kLaunchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "GROUP_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", nullptr}},
    {"mpirun",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     nullptr,
     {"PMI_JOBID", "PMI_ID_STRING", nullptr}},
    {"srun",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     "SLURM_STEP_NUM_NODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", nullptr}},
};

std::optional<std::string> text_of(const GetVariable& variable, const char* name) {
  if (name == nullptr) return std::nullopt;
  const char* value = variable(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> number_of(const GetVariable& variable, const char* name, int low, int high) {
  const auto text = text_of(variable, name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, status] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (status != std::errc{} || end != text->data() + text->size() || value < low || value > high) {
    bad(std::string(name) + "=" + *text + ": legal " + std::to_string(low) + ".." +
        std::to_string(high));
  }
  return value;
}

int required(const GetVariable& variable, const Words& words, const char* name, int low, int high) {
  const auto value = number_of(variable, name, low, high);
  if (!value) {
    bad(std::string(name) + " is not set, but " + words.launcher + "'s " +
        (name == words.rank ? words.num_ranks : words.rank) + " is");
  }
  return *value;
}

// When a launcher does not name its job: ranks of one machine have the launcher's daemon as parent.
std::string parent_identity() {
  const pid_t parent = getppid();
  std::ifstream file("/proc/" + std::to_string(parent) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return "parent " + std::to_string(parent);
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // field 22: start time
  return "parent " + std::to_string(parent) + " started " + field;
}

std::string job_of(const GetVariable& variable, const Words& words) {
  std::string job = words.launcher;
  bool named = false;
  for (const char* name : words.job) {
    const auto value = text_of(variable, name);
    if (!value) continue;
    job += " " + *value;
    named = true;
  }
  return named ? job : job + " " + parent_identity();
}

LaunchInfo read_words(const GetVariable& variable, const Words& words) {
  LaunchInfo launch;
  launch.launcher = words.launcher;
  launch.num_ranks = required(variable, words, words.num_ranks, 1, 1 << 20);
  launch.rank = required(variable, words, words.rank, 0, launch.num_ranks - 1);
  const auto num_hosts = number_of(variable, words.num_hosts, 1, 1 << 20);
  const int local_default = num_hosts.value_or(1) == 1 ? launch.num_ranks : 0;
  launch.num_local_ranks =
      number_of(variable, words.num_local_ranks, 1, launch.num_ranks).value_or(local_default);
  if (launch.num_local_ranks < launch.num_ranks) {
    throw Error(ErrorCategory::not_possible,
                std::to_string(launch.num_ranks) + " ranks on several machines (" +
                    (launch.num_local_ranks > 0 ? std::to_string(launch.num_local_ranks)
                                                : std::string("some")) +
                    " on this one): peer memory spans one machine");
  }
  if (launch.num_ranks > kMostRanks) {
    bad(std::string(words.num_ranks) + "=" + std::to_string(launch.num_ranks) + ": legal 1.." +
        std::to_string(kMostRanks));
  }
  launch.local_rank =
      number_of(variable, words.local_rank, 0, launch.num_local_ranks - 1).value_or(launch.rank);
  launch.job = job_of(variable, words);
  return launch;
}

}  // namespace

LaunchInfo read_launch(const GetVariable& variable) {
  for (const Words& words : kLaunchers) {
    if (text_of(variable, words.rank) || text_of(variable, words.num_ranks)) {
      // An allocation without srun has SLURM_NTASKS but no rank: that is one process.
      const bool bare_allocation =
          std::strcmp(words.launcher, "srun") == 0 && !text_of(variable, words.rank);
      if (!bare_allocation) return read_words(variable, words);
    }
  }
  LaunchInfo alone;
  alone.job = "process " + std::to_string(getpid());
  return alone;
}

LaunchInfo read_launch() {
  return read_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace xstage

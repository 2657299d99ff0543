#include "comm/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// Returns the leading integer of `text`, or 0 if it has no leading digits.
i64 parse_leading_integer(const char* text) {
  i64 number = 0;
  std::from_chars(text, text + std::strlen(text), number);
  return number;
}

/// Returns the target of a process's standard output, or "" if it is unknown.
std::string standard_output_of(const std::string& process) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + process + "/fd/1", error).string();
}

/// Returns the id of the parent process, or "" if it is unknown.
std::string parent_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/status");
  for (std::string word; file >> word;) {
    if (word == "PPid:" && file >> word) return word;
  }
  return "";
}

}  // namespace

bool is_output_terminal() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  const std::string own_output = standard_output_of("self");
  std::string process = parent_of("self"), output = own_output;
  for (; output == own_output && process != "" && process != "0"; process = parent_of(process))
    output = standard_output_of(process);
  return output.starts_with("/dev/pts/") || output.starts_with("/dev/tty") || output == "/dev/console";
}

void Launcher::check(int mpi_size) const {
  check_input(mpi_size >= ranks, variable, " announces ", ranks, " ranks, but MPI sees ", mpi_size,
              ". Start the program with mpirun -n ", ranks, " or srun --mpi=pmix, once; to run only ", mpi_size,
              ", unset ", variable);
}

Launcher read_launcher(const std::function<const char*(const char*)>& variable) {
  Launcher launcher;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE"}) {
    const char* text = variable(name);
    if (!text || !*text) continue;
    const int ranks = parse_number<int>(text).value_or(0);
    check_input(ranks >= 1, name, "=", text, ": the number of ranks must be an integer of at least 1");
    if (ranks > launcher.ranks || launcher.variable.empty()) launcher.ranks = ranks, launcher.variable = name;
  }
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const char* text = variable(name);
    if (text && launcher.node_ranks == 0) launcher.node_ranks = parse_number<int>(text).value_or(0);
  }
  return launcher;
}

u64 timer_slack_ns(int node_ranks, int cores) {
  constexpr u64 kCheckNs = 100'000, kMaxNs = 20'000'000;
  if (node_ranks <= cores) return 0;
  return std::min(kMaxNs, kCheckNs * static_cast<u64>(node_ranks) / static_cast<u64>(std::max(1, cores)));
}

SlurmJob read_slurm_job(const std::function<const char*(const char*)>& variable) {
  const char* id = variable("SLURM_JOB_ID");
  if (!id || !*id) return {};
  const char* cluster = variable("SLURM_CLUSTER_NAME");
  const char* requeued = variable("SLURM_RESTART_COUNT");  // unset in a job's first run
  return {.name = str("job ", id, " of cluster ", cluster ? cluster : "?"),
          .requeued = requeued ? parse_leading_integer(requeued) : 0};
}

}  // namespace mcpp

#include "comm/launcher.h"

#include <charconv>
#include <cstring>

#include "base/check.h"

namespace mcpp {

void Launcher::check(int mpi_size) const {
  check_input(mpi_size >= ranks, variable, " promises ", ranks, " ranks, but MPI sees ", mpi_size,
              ". Start the program with mpirun -n ", ranks, " or srun --mpi=pmix, once; to really run ", mpi_size,
              ", unset ", variable);
}

Launcher read_launcher(const std::function<const char*(const char*)>& variable) {
  Launcher launcher;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE"}) {
    const char* text = variable(name);
    if (!text || !*text) continue;
    int ranks = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, ranks);
    check_input(error == std::errc() && rest == end && ranks >= 1, name, "=", text,
                ": the number of ranks must be a whole number of at least 1");
    if (ranks > launcher.ranks || launcher.variable.empty()) launcher = {ranks, name};
  }
  return launcher;
}

}  // namespace mcpp

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "comm/launcher.h"
#include "megatron_cpp/commands.h"

namespace {

int report(mcpp::ExitCode code, const char* what) {
  std::fprintf(stderr, "megatron_cpp: error: %s\n", what);
  return static_cast<int>(code);
}

/// Threads that wait at the end of a parallel region spin, by libgomp's default for some 10 ms: on a busy machine that
/// keeps the processor from the very thread they wait for. Some 0.4 ms is as fast on an idle machine and several times
/// faster on a busy one. libgomp reads its settings before main, so the program starts itself once more; where that
/// fails it runs as it is.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  ::execv("/proc/self/exe", argv);
}

/// Started by a launcher, every process would train the whole run into the same folder.
void refuse_several_processes() {
  const mcpp::Launcher launcher =
      mcpp::read_launcher([](const char* name) -> const char* { return std::getenv(name); });
  mcpp::check_input(launcher.ranks == 1, launcher.variable, " asks for ", launcher.ranks,
                    " processes, but this version trains in one; start it without mpirun or srun, or unset ",
                    launcher.variable);
}

}  // namespace

int main(int argc, char** argv) {
  limit_spinning(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a pager that was closed must not end a training
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of write, reported like a full disk
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    mcpp::Log log;
    if (!args.empty() && args[0] == "pretrain") refuse_several_processes();
    return static_cast<int>(mcpp::run_program(args, log));
  } catch (const mcpp::Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(mcpp::ExitCode::OutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return report(mcpp::ExitCode::Internal, error.what());
  }
}

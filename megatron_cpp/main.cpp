#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "megatron_cpp/commands.h"

namespace {

int report(mcpp::ExitCode code, const char* what) {
  std::fprintf(stderr, "megatron_cpp: error: %s\n", what);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a pager that was closed must not end a training
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of write, reported like a full disk
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    mcpp::Log log;
    return static_cast<int>(mcpp::run_program(args, log));
  } catch (const mcpp::Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(mcpp::ExitCode::OutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return report(mcpp::ExitCode::Internal, error.what());
  }
}

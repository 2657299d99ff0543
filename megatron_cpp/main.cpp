#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/machine.h"
#include "base/program/standard_streams.h"
#include "base/strings.h"
#include "comm/metered.h"
#include "comm/mpi/mpi.h"
#include "comm/startup_timeout.h"
#include "comm/watchdog/watchdog.h"
#include "megatron_cpp/commands/commands.h"

namespace {

int report(mcpp::ExitCode code, const char* what, int rank) {
  const std::string prefix = rank > 0 ? mcpp::str("[rank ", rank, "] ") : "";
  // One call, because other threads and MPI write to stderr, too.
  std::fprintf(stderr, "%smegatron_cpp: error: %s\n", prefix.c_str(), what);
  return static_cast<int>(code);
}

/// Limits the time that threads spin at the end of a parallel region. The default of libgomp, some 10 ms, occupies the
/// core that, on a busy host, the awaited thread needs. About 0.4 ms is as fast on an idle host and several times
/// faster on a busy host. libgomp reads its settings before main, so the program executes itself again; if that fails
/// it continues.
void limit_openmp_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  std::error_code error;  // its own path, so that ps and pgrep show its name
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(program.c_str(), argv);
}

/// Lets waiting ranks yield their core, since there may be more ranks than cores, unless the user set it otherwise.
void set_mpi_yield_when_idle() {
  ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
}

/// Gives the streams of a GPU separate queues (the default is 8 queues) and disables lazy loading of kernels, to
/// prevent deadlocks: streams that share a queue wait for each other, so a message could wait for a message of another
/// group; lazy loading may wait for all streams, and thus for a collective whose other ranks arrive later. Has no
/// effect without a GPU.
void configure_cuda_environment() {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

/// Restores the default action of termination signals, even if the parent process ignored or blocked them, since a
/// process that starts and waits for others must remain killable. Training later installs its own handlers.
void reset_signal_handlers() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGUSR1}) {
    std::signal(signal, SIG_DFL);
    sigaddset(&set, signal);
  }
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

const char* environment(const char* name) {
  return std::getenv(name);
}

// Signal handlers must not allocate or lock: only system calls and stack memory are used.

void write_stderr(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// Returns true if `address` is in the mapping of this line: "7f00-7fff r--s 00000000 fe:00 1234 /path".
bool contains(std::string_view line, std::uintptr_t address) {
  std::uintptr_t begin = 0, end = 0;
  const char* const last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), last, begin, 16);
  if (first.ptr == last || *first.ptr != '-') return false;
  std::from_chars(first.ptr + 1, last, end, 16);
  return begin <= address && address < end;
}

/// Calls f with each line of /proc/self/maps, truncated if too long, until it returns true.
template <class F>
void for_each_mapping(F&& f) {
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 4096> line{};
  std::size_t length = 0;
  for (char c = 0; ::read(file, &c, 1) == 1;) {
    if (c != '\n') {
      if (length < line.size()) line[length++] = c;
      continue;
    }
    if (f(std::string_view(line.data(), length))) break;
    length = 0;
  }
  ::close(file);
}

void handle_bus_error(int, siginfo_t* info, void*) {
  write_stderr("megatron_cpp: error: cannot read ");
  for_each_mapping([&](std::string_view line) {
    if (!contains(line, reinterpret_cast<std::uintptr_t>(info->si_addr))) return false;
    const std::size_t path = line.find_first_of("/[");
    write_stderr(path == std::string_view::npos ? "memory that belongs to no file" : line.substr(path));
    return true;
  });
  write_stderr(": it was truncated while in use, or its disk fails or is full\n");
  ::_exit(static_cast<int>(mcpp::ExitCode::BadInput));
}

/// Installs a handler for SIGBUS, which the system raises when a mapped file was truncated or its disk fails. Such an
/// access then prints a message naming the file and exits with the code of BadInput instead of dumping core.
void report_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

/// Wraps a group of ranks so that the recorder logs its operations.
std::unique_ptr<mcpp::Communicator> with_flight_recorder(std::unique_ptr<mcpp::Communicator> group,
                                                         mcpp::FlightRecorder& recorder, const char* name,
                                                         std::vector<int> ranks) {
  return mcpp::make_metered(std::move(group), std::make_shared<mcpp::CommMeter>(), {recorder, name, std::move(ranks)});
}

/// Runs a single rank. It needs a watchdog only on a GPU, for which initialize() starts one.
int run_alone(const std::vector<std::string>& args, mcpp::FlightRecorder& recorder) {
  const std::unique_ptr<mcpp::Communicator> self = mcpp::make_self_communicator();
  mcpp::Log log;
  const mcpp::ExitCode code =
      mcpp::run_program(args, log, {.ranks = *self, .recorder = &recorder, .job = mcpp::read_slurm_job(environment)});
  recorder.enter(mcpp::Activity::Ending, 0);
  return static_cast<int>(code);
}

int run_as_rank(const std::vector<std::string>& args, const mcpp::MpiSession& mpi, mcpp::FlightRecorder& recorder,
                mcpp::StatusBoard& board) {
  const mcpp::u64 start = recorder.begin({.name = "MPI_Comm_dup"});
  std::vector<int> ranks(static_cast<std::size_t>(mpi.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::unique_ptr<mcpp::Communicator> world =
      with_flight_recorder(mpi.make_world(), recorder, "world", std::move(ranks));
  const std::vector<int>& ranks_on_node = mpi.ranks_on_node();
  const std::unique_ptr<mcpp::Communicator> node =
      with_flight_recorder(world->split(ranks_on_node.front(), world->rank()), recorder, "node", ranks_on_node);
  recorder.set_state(start, mcpp::OperationRecord::State::Done);
  mcpp::Log log(world->rank(), mcpp::is_output_terminal());
  const mcpp::ExitCode code = mcpp::run_program(args, log,
                                                {.ranks = *world,
                                                 .node = node.get(),
                                                 .recorder = &recorder,
                                                 .cores = mpi.cores_on_node(),
                                                 .cores_per_rank = std::max(1, mpi.cores_on_node() / node->size()),
                                                 .job = mcpp::read_slurm_job(environment),
                                                 .board = &board});
  recorder.enter(mcpp::Activity::Ending, 0);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  mcpp::open_closed_standard_descriptors();
  limit_openmp_spinning(argv);
  set_mpi_yield_when_idle();
  configure_cuda_environment();
  reset_signal_handlers();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pager must not end training
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding the file size limit becomes a write error, reported like a full disk
  report_bus_errors();
  mcpp::raise_open_file_limit();
  mcpp::FlightRecorder recorder;
  std::optional<mcpp::MpiSession> mpi;  // only with a launcher: a single process needs no MPI
  std::unique_ptr<mcpp::StatusBoard> board;
  std::optional<mcpp::Watchdog> watchdog;
  const auto failed = [&](mcpp::ExitCode code, const char* what) {
    const int rank = mpi ? mpi->rank() : 0;
    // An error of all ranks is reported once: if rank 0 has the same error, it reports the error and aborts the other
    // ranks during this delay.
    if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const int result = report(code, what, rank);
    if (mpi && mpi->size() > 1) mpi->abort(result);
    return result;
  };
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    const mcpp::Launcher launcher = mcpp::read_launcher(environment);
    if (launcher.variable.empty()) return run_alone(args, recorder);
    const double start_limit = mcpp::read_startup_timeout(environment);
    recorder.set_limits({.distributed = start_limit});  // until the configuration is known
    {
      mcpp::StartupTimeout limit(start_limit, launcher, mcpp::read_rank(environment));
      mpi.emplace(launcher);
      limit.enter("the exchange of the ranks of this node");
      board = mpi->make_status_board();
    }
    if (mpi->size() > 1)
      watchdog.emplace(recorder, *board,
                       [] { mcpp::MpiSession::try_abort(static_cast<int>(mcpp::ExitCode::PeerLost)); });
    const int result = run_as_rank(args, *mpi, recorder, *board);
    recorder.begin({.name = "MPI_Finalize"});
    mpi.reset();
    return result;
  } catch (const mcpp::Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(mcpp::ExitCode::OutOfMemory, "out of host memory");
  } catch (const std::filesystem::filesystem_error& error) {  // a path that is too long, or a folder without access
    return failed(mcpp::ExitCode::BadInput, error.what());
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return failed(mcpp::ExitCode::Internal, error.what());
    return failed(mcpp::ExitCode::BadInput,
                  "cannot start a thread: the limit of processes and threads is reached (`ulimit -u`, `ulimit -v`, or "
                  "pids.max of "
                  "the control group); raise it, or set device.num_threads lower");
  } catch (const std::exception& error) {
    return failed(mcpp::ExitCode::Internal, error.what());
  }
}

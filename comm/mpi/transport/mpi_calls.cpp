#include "comm/mpi/transport/mpi_calls.h"

#include <sched.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>

namespace mcpp {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(ExitCode::PeerLost, call, ": ", std::string(text.data(), static_cast<std::size_t>(length)));
}

void WaitPolicy::check() const {
  if (stop.stop_requested()) fail(ExitCode::PeerLost, "operation canceled");
}

PollLoop::Step PollLoop::next() {
  if (wait_policy_.progress_callback) wait_policy_.progress_callback();
  if (wait_policy_.idle && *wait_policy_.idle == 0) {
    poll_count_ = 0;
    return Step::Sleep;
  }
  const int poll_count = poll_count_++;
  if (poll_count < wait_policy_.spins) return Step::Poll;
  return poll_count < wait_policy_.spins + wait_policy_.yields ? Step::Yield : Step::Sleep;
}

void PollLoop::pause() {
  using namespace std::chrono_literals;
  const Step step = next();
  if (step == Step::Poll) return;
  wait_policy_.check();
  if (step == Step::Yield)
    ::sched_yield();
  else
    std::this_thread::sleep_for(50us);  // pipeline bubble: leave the core to busy ranks
}

bool are_complete(std::span<MPI_Request> requests, MPI_Status* statuses) {
  int done = 0;
  if (requests.size() == 1) {  // MPI_Test reports the actual error code, MPI_Testall may not
    MPI_Status* status = statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : statuses;
    check_mpi(MPI_Test(requests.data(), &done, status), "MPI_Test");
    return done != 0;
  }
  check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses), "MPI_Testall");
  return done != 0;
}

void wait_all(std::span<MPI_Request> requests, const WaitPolicy& wait_policy, MPI_Status* statuses) {
  for (PollLoop poll_loop(wait_policy); !are_complete(requests, statuses);) poll_loop.pause();
}

void drive_mpi_progress() {
  int unused = 0;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &unused, MPI_STATUS_IGNORE), "MPI_Iprobe");
  ::sched_yield();
}

int comm_rank(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

int comm_size(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

MpiComm MpiComm::split(MPI_Comm comm, int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, color, key, &part), "MPI_Comm_split");
  return MpiComm(part);
}

}  // namespace mcpp

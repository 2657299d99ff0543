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

void Patience::check() const {
  if (stop.stop_requested()) fail(ExitCode::PeerLost, "nobody waits for this operation any more");
}

void wait_all(std::span<MPI_Request> requests, const Patience& patience, MPI_Status* statuses) {
  using namespace std::chrono_literals;
  for (int tries = 0;; ++tries) {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses), "MPI_Testall");
    if (done) return;
    if (tries < patience.spins) continue;
    patience.check();
    if (tries < patience.spins + patience.yields)
      ::sched_yield();
    else
      std::this_thread::sleep_for(50us);  // a bubble of the pipeline: leave the core to those who work
  }
}

void let_messages_move() {
  int unused = 0;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &unused, MPI_STATUS_IGNORE), "MPI_Iprobe");
  ::sched_yield();
}

int rank_in(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

int ranks_of(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

MpiComm MpiComm::split(MPI_Comm comm, int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, color, key, &part), "MPI_Comm_split");
  return MpiComm(part);
}

MpiPart::MpiPart(i64 bytes, i64 stride) {
  MPI_Datatype block = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &block), "MPI_Type_contiguous");
  const int code = MPI_Type_create_resized(block, 0, static_cast<MPI_Aint>(stride), &type_);
  MPI_Type_free(&block);
  check_mpi(code, "MPI_Type_create_resized");
  check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
}

}  // namespace mcpp

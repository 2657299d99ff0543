#include "comm/mpi/mpi_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {
namespace {

/// Maps a shared memory object. Returns null on failure.
std::shared_ptr<void> map(const char* name, int flags, i64 bytes) {
  const int file = ::shm_open(name, flags, S_IRUSR | S_IWUSR);
  if (file < 0) return nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  void* memory = MAP_FAILED;
  if (!(flags & O_CREAT) ||
      ::posix_fallocate(file, 0, bytes) == 0)  // reserves space: reports a full /dev/shm before the first write
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [size](void* mapped) { ::munmap(mapped, size); }};
}

bool all_agree(bool local_value, const MpiComm& node) {
  int value = local_value;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_MIN, node.get()), "MPI_Allreduce");
  return value != 0;
}

}  // namespace

std::unique_ptr<StatusBoard> make_status_board() {
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  const MpiComm node(shared);
  const bool is_first = node.rank() == 0;
  const i64 bytes = StatusBoard::bytes_for(node.size());

  std::array<char, 64> name{};
  std::shared_ptr<void> memory;
  if (is_first) {
    std::snprintf(name.data(), name.size(), "/megatron_cpp_%d", static_cast<int>(::getpid()));
    ::shm_unlink(name.data());  // left by a killed process with the same id
    memory = map(name.data(), O_RDWR | O_CREAT | O_EXCL, bytes);
  }
  check_mpi(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, node.get()), "MPI_Bcast");
  const bool is_there = all_agree(!is_first || memory, node);
  if (!is_first && is_there) memory = map(name.data(), O_RDWR, bytes);
  const bool all_mapped = all_agree(memory != nullptr, node);
  if (is_first) ::shm_unlink(name.data());
  if (!all_mapped) return std::make_unique<StatusBoard>(rank);
  return std::make_unique<StatusBoard>(std::move(memory), node.size(), node.rank(), rank);
}

}  // namespace mcpp

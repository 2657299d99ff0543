#include "comm/mpi/node_info.h"

#include <sched.h>

#include <algorithm>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {
namespace {

/// Returns the number of cores on which any rank of `node` may run.
int usable_cores(const MpiComm& node) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof(cores), &cores);  // fails if cpu_set_t is too small: the set then stays empty
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof(cores), MPI_BYTE, MPI_BOR, node.get()), "MPI_Allreduce");
  return std::max(1, CPU_COUNT(&cores));
}

}  // namespace

NodeInfo query_node_info() {
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  const MpiComm node(shared);
  NodeInfo node_info{.ranks = std::vector<int>(node.size()), .cores = usable_cores(node)};
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT, node_info.ranks.data(), 1, MPI_INT, node.get()), "MPI_Allgather");
  return node_info;
}

}  // namespace mcpp

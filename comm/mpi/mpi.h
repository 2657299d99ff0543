// MPI backend: ranks are processes, tensors are in host memory.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/watchdog/status_board.h"

namespace mcpp {

/// Ranks and cores of the node of a rank.
struct NodeInfo {
  std::vector<int> ranks{0};  ///< world ranks on this node, ascending
  int cores = 1;              ///< total cores available to these ranks; launchers often bind each rank separately

  /// Returns a unique id of the node.
  int node() const { return ranks.front(); }
  bool has_core_per_rank() const { return cores >= static_cast<int>(ranks.size()); }
};

/// Returns the name and the version of the MPI library, such as "Open MPI v4.1.4". Needs no MpiSession.
std::string mpi_version();

/// Queries MPI for the node of this rank. Collective over the world.
NodeInfo query_node_info();

// Factory for the status board of a node.

/// Creates a status board in POSIX shared memory, which needs no MPI after construction. If some rank of the node
/// cannot map it, returns a board of this rank only. Collective over the world.
std::unique_ptr<StatusBoard> make_status_board();

/// MPI lifetime from MPI_Init to MPI_Finalize; created once in main and outlives every communicator. If an exception
/// destroys the session, it aborts the world so that no peer hangs.
class MpiSession {
 public:
  /// Throws BadInput if the launcher announced more ranks than MPI sees.
  explicit MpiSession(const Launcher& launcher);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  /// Returns the world ranks on this node, including this one, in ascending order.
  const std::vector<int>& ranks_on_node() const { return node_info_.ranks; }
  /// Returns the total number of cores available to the ranks of this node, regardless of how the launcher bound them.
  /// Divide by the number of ranks for a per-rank thread count.
  int cores_on_node() const { return node_info_.cores; }
  /// Creates a group of all ranks. `node_of` maps a rank to its node id; if empty, MPI determines it. Tests use it to
  /// simulate several nodes on one.
  ///
  /// Within a node, collectives use shared memory: in place on tensors of devices with CpuOptions::shared if all ranks
  /// can map them, otherwise through a window of 2 MiB per rank and reducing group. They are complete when the call
  /// returns. Collectives of groups that span nodes, and messages between nodes, run on a progress thread, overlapped
  /// with computation. Sums are in rank order in both cases, so results are bitwise identical to a single node.
  std::unique_ptr<Communicator> make_world(const std::function<int(int rank)>& node_of = {}) const;
  /// Creates the status board shared by the ranks of this node. Collective. The board may outlive the session.
  std::unique_ptr<StatusBoard> make_status_board() const;
  /// Requests that every rank of the world be terminated. Thread-safe. May return before they have terminated, or never
  /// return.
  static void try_abort(int exit_code) noexcept;
  /// Terminates every rank of the world with this exit code.
  [[noreturn]] void abort(int exit_code) const noexcept;

 private:
  NodeInfo node_info_;
  bool has_thread_multiple_ = false;  // MPI provides MPI_THREAD_MULTIPLE
};

}  // namespace mcpp

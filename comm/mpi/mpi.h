// Ranks as processes, over MPI. Tensors in host memory.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/mpi/mpi_machine.h"
#include "comm/watch/status_board.h"

namespace mcpp {

/// MPI from MPI_Init to MPI_Finalize; made once, in main, and outlives every communicator. When it is destroyed by an
/// error it aborts the world instead, so that no peer waits for ever.
class MpiSession {
 public:
  /// Throws BadInput when the launcher promised more ranks than MPI sees.
  explicit MpiSession(const Launcher& launcher);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  /// Ranks that share the machine of this one, with itself, ascending.
  const std::vector<int>& ranks_on_node() const { return machine_.ranks; }
  /// Cores that these ranks may use together, however the launcher bound them: divided by the number of them, the
  /// threads that a rank can have for itself.
  int cores_on_node() const { return machine_.cores; }
  /// All ranks. `node_of` tells the node that a rank runs on; left out, MPI is asked. (Tests play several nodes on
  /// one.)
  ///
  /// Inside a node collectives work through shared memory: in place on tensors of devices with CpuOptions::shared where
  /// ranks can map one another's, otherwise through 2 MiB per rank and group that reduces; they are complete when they
  /// return. Those of groups on several nodes, and messages between nodes, are carried on by a thread while the rank
  /// computes. Sums are in the order of ranks there, too, so that the result has the same bits as on one node.
  std::unique_ptr<Communicator> world(const std::function<int(int rank)>& node_of = {}) const;
  /// Of the ranks of this machine; stays as it is after the session. Called by all ranks.
  std::unique_ptr<StatusBoard> status_board() const;
  /// Asks for the end of every rank of the world, from any thread. May return before that, or never.
  static void try_abort(int exit_code) noexcept;
  /// Ends every rank of the world with this exit code.
  [[noreturn]] void abort(int exit_code) const noexcept;

 private:
  Machine machine_;
  bool may_carry_on_ = false;  // MPI may be called by several threads at a time
};

}  // namespace mcpp

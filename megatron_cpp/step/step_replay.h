// Repeated executions of a step, whose results must be bitwise identical on every rank: a difference is a fault of the
// hardware. Names the rank whose own computation differed, not the ranks that received its results.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/contribution_log.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Rank whose computation differed between two executions although it received identical data.
struct FaultyRank {
  int rank = 0;
  std::string host;
  std::string operation;  ///< first operation to which its contribution differed, or "the gradient"
};

/// Returns "rank 3 on node-7 (first in tp of rank 2, all_reduce #5)", joined by commas.
std::string describe(const std::vector<FaultyRank>& ranks);

/// Result of one execution of a step on this rank.
struct Execution {
  std::vector<Contribution> contributions;  ///< to communication, in order
  std::string gradient;                     ///< checksum of the local gradients and losses
  TrainingState::Measurement measurement;   ///< identical on all ranks
};

/// Comparison of the executions of a step.
struct ReplayVerdict {
  enum class Kind : u8 {
    Reproducible,  ///< all executions are identical
    Transient,     ///< one execution differs, the others are identical
    Persistent,    ///< no two executions are identical
    Aborted        ///< a signal interrupted an execution
  };
  Kind kind = Kind::Reproducible;
  std::vector<FaultyRank> ranks = {};  ///< empty if reproducible
};

class StepReplay {
 public:
  /// Runs forward and backward of the step once.
  using Pass = std::function<void()>;

  StepReplay(TrainingState& state, ParallelState& parallel);
  ~StepReplay();
  StepReplay(const StepReplay&) = delete;
  StepReplay& operator=(const StepReplay&) = delete;

  /// Executes the step twice, and a third time if the results differ. Leaves the gradients of the last execution, which
  /// agrees with another one unless the verdict is Persistent. Collective.
  ReplayVerdict compare(const Pass& pass);
  /// Returns the loss and gradient norm of the last execution of compare().
  const TrainingState::Measurement& measurement() const { return measurement_; }

 private:
  Execution execute(const Pass& pass);
  /// Returns true if the executions are identical on all ranks. Collective.
  bool are_identical(const Execution& a, const Execution& b) const;
  /// Returns the ranks whose computation differs. Collective.
  std::vector<FaultyRank> find_faulty_ranks(const Execution& a, const Execution& b) const;

  TrainingState& state_;
  ParallelState& parallel_;
  ContributionLog log_;
  TrainingState::Measurement measurement_;
};

}  // namespace mcpp

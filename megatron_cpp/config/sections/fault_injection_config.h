// Fault injection for tests of recovery: section [fault_injection] of the configuration, empty in real runs.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace mcpp {

enum class FaultKind {
  None,
  NanLoss,
  NanGrad,
  NanLocalGrad,
  NanWeights,
  Spike,
  BitFlip,
  Error,
  Exit,
  Kill,
  Hang,
  Slow
};
/// Point at which Error, Exit, Kill and Hang take effect: before a step, or at a SavePoint.
enum class FaultPoint {
  Step,
  BeforeFiles,
  AfterFiles,
  BeforeManifest,
  BeforeRename,
  BeforeLatest,
  BeforePrune,
  BeforeReplicas,
  BeforeReplicaRename
};

template <>
struct EnumNames<FaultKind> {
  static constexpr std::array<std::string_view, 12> value{"none",        "nan_loss", "nan_grad", "nan_local_grad",
                                                          "nan_weights", "spike",    "bit_flip", "error",
                                                          "exit",        "kill",     "hang",     "slow"};
};
template <>
struct EnumNames<FaultPoint> {
  static constexpr std::array<std::string_view, 9> value{
      "step",          "before_files", "after_files",     "before_manifest",      "before_rename",
      "before_latest", "before_prune", "before_replicas", "before_replica_rename"};
};

/// Returns true if the fault ends or blocks the process instead of corrupting values.
constexpr bool ends_process(FaultKind kind) {
  return kind == FaultKind::Error || kind == FaultKind::Exit || kind == FaultKind::Kill || kind == FaultKind::Hang;
}

struct FaultInjectionConfig {
  FaultKind kind = FaultKind::None;
  i64 iteration = 1;
  i64 iterations = 1;
  i64 executions = 1;
  i64 rank = -1;
  FaultPoint point = FaultPoint::Step;
  i64 exit_code = 1;
  double seconds = 0.1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("kind", self.kind,
          "for tests of recovery: nan_loss, nan_grad, nan_weights write NaN to loss, gradients or weights; "
          "nan_local_grad writes NaN to the gradients of one rank before they are reduced (with pipelines, a rank with "
          "the output layer); spike multiplies loss and gradient by 1000; bit_flip flips a bit of a weight during "
          "the passes of a step; error throws an internal error; exit ends "
          "the process, kill kills it, hang sleeps forever, slow sleeps for some seconds before every step");
    visit("iteration", self.iteration, "first iteration that is affected", at_least(0));
    visit("iterations", self.iterations, "number of consecutive iterations that are affected; 0 = all from the first",
          at_least(0));
    visit("executions", self.executions,
          "for bit_flip: number of executions of an affected step that are affected, if the step is repeated "
          "(training.rerun_interval); 0 = all, each with a different bit",
          at_least(0));
    visit("rank", self.rank, "rank that is affected; -1 = all", at_least(-1));
    visit("point", self.point,
          "for error, exit, kill, hang: before the step, or a point of the iteration's save; before_manifest to "
          "before_prune occur on rank 0 only, except in local saves");
    visit("exit_code", self.exit_code, "for exit: exit code of the process", between(0, 255));
    visit("seconds", self.seconds, "for slow: seconds to sleep before every step", at_least(0));
  }

  /// Returns every violated rule between fields, as "fault_injection.key: problem and allowed values".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp

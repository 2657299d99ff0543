// What happens between the forward and backward passes of a step, which may take long: its progress is shown, and a
// signal ends it.
#pragma once
#include <array>
#include <span>

#include "comm/communicator.h"

namespace mcpp {

/// What ranks tell one another about stopping. It rides along with the numbers that they exchange of a step, or of a
/// batch of an evaluation, and all come to know the largest of each.
struct Notices {
  int signal = 0;      ///< that asks to stop, or 0
  double minutes = 0;  ///< since the process began

  static constexpr i64 kCount = 2;
  std::array<double, kCount> numbers() const { return {static_cast<double>(signal), minutes}; }
  static Notices of(std::span<const double, kCount> numbers) { return {static_cast<int>(numbers[0]), numbers[1]}; }
};

/// Who looks at a training step, or at a batch of an evaluation, between its passes.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  /// The signal that asks to stop, as far as this rank knows, or 0. Once there is one there always is.
  virtual int signal() const = 0;
  /// Since the process of this rank began.
  virtual double minutes() const = 0;
  /// `done` of the `all` passes of this rank in the step are over, or queued on a GPU; there are as many
  /// `microbatches`.
  virtual void passed(i64 done, i64 all, i64 microbatches) = 0;
};

/// One run of a schedule on one rank, which a signal gives up at the next pass of a microbatch.
///
/// A rank that gives up goes on through its schedule to the end, with all that it exchanges with others, and computes
/// nothing (Pass::give_up()). So it need not agree with anybody about when: others compute on until they hear of the
/// signal themselves, and no rank waits for a message that does not come. All learn at the end of the step that
/// somebody gave it up, and then nothing of it counts. Only ranks that meet inside a layer, the tensor-, context- and
/// expert-parallel ones, give up together, by one number on the host before each pass.
class StepUnderWay {
 public:
  explicit StepUnderWay(Communicator& layer) : layer_(layer) {}

  /// Null: nobody; the step goes on in any case. The same on all ranks.
  void set_watch(StepWatch* watch) { watch_ = watch; }
  void begin(i64 passes, i64 microbatches);
  /// Before each pass, by all ranks of the layer. False from the moment when the step is given up.
  bool goes_on();
  bool is_given_up() const { return is_given_up_; }
  /// What this rank knows; nothing without a watch.
  Notices notices() const;

 private:
  Communicator& layer_;
  CpuDevice host_;  // for the number that ranks agree by, so that no GPU is waited for
  StepWatch* watch_ = nullptr;
  i64 passes_ = 0, done_ = 0, microbatches_ = 0;
  int agreed_signal_ = 0;
  bool is_given_up_ = false;
};

}  // namespace mcpp

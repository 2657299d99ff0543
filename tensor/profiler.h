// Profiler of one rank: records named time ranges for traces, and their sums for timers. Each rank has one Profiler,
// which is passed down; a range costs one comparison when profiling is off.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Granularity of a range, from coarse to fine.
enum class Detail : u8 {
  Off,
  Phase,       ///< phases of a step (data, passes, optimizer), saves, evaluations
  Microbatch,  ///< passes of a microbatch and their waits for messages and collectives
  Layer        ///< inside a pass
};

/// Category of the time in a range. Ranges of one kind never overlap.
enum class RangeKind : u8 {
  Work,           ///< may contain other ranges
  Communication,  ///< inside a collective of a group, except for pipeline messages: exposed communication
  Message,        ///< inside a call on the pipeline's groups
  Bubble          ///< waiting for pipeline messages
};

/// Optional attributes of a range. Negative or empty values mean unknown.
struct RangeInfo {
  i64 iteration = -1;
  i64 microbatch = -1;
  i64 chunk = -1;               ///< index of the model chunk on this rank
  i64 bytes = -1;               ///< bytes sent by this rank
  std::string_view group = {};  ///< name of the group of ranks; must outlive the profiler
};

struct ProfiledRange {
  using Clock = std::chrono::steady_clock;
  std::string name;
  RangeKind kind = RangeKind::Work;
  Clock::time_point begin = {}, end = {};
  RangeInfo info = {};
  bool is_on_device = false;  ///< recorded on the asynchronous device instead of the host
};

/// Maps the time of an asynchronous device to the host's clock.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  /// Places a mark after the work queued so far. Marks are increasing. Failures are reported by time_of().
  virtual std::size_t mark() noexcept = 0;
  /// Waits until the device reaches the mark and returns the time at which it did.
  virtual ProfiledRange::Clock::time_point time_of(std::size_t mark) = 0;
};

class TimedRange;

/// Profiler of the training thread.
class Profiler {
 public:
  using Clock = ProfiledRange::Clock;
  /// Maximum number of ranges in a trace (about 200 MB). Later ones are only counted.
  static constexpr std::size_t kMaxRanges = 1'000'000;

  bool is_enabled(Detail detail) const { return detail <= detail_; }

  /// Enables timers: sums of ranges up to this detail.
  void enable_timers(Detail detail);
  /// Returns the seconds per name since the last call.
  std::map<std::string, double> take_seconds();

  /// Starts a trace of ranges of any detail. `clock` may be null; otherwise it must live until stop().
  void start(DeviceClock* clock);
  bool is_tracing() const { return is_tracing_; }
  struct Trace {
    std::vector<ProfiledRange> ranges;       ///< ordered by end time
    i64 dropped_ranges = 0;                  ///< number of ranges dropped beyond kMaxRanges
    std::map<std::string, i64> saved_bytes;  ///< bytes by name, as reported by record_kept_bytes()
  };
  Trace stop();

  /// Adds a range whose times the caller has measured. Ignored unless is_enabled(detail). If the range has a group, the
  /// group's name is prepended to the name.
  void add(std::string_view name, Detail detail, RangeKind kind, Clock::time_point begin, Clock::time_point end,
           const RangeInfo& info = {});
  /// Records the bytes that the forward pass of a module keeps for one microbatch; a trace reports the maximum over
  /// microbatches.
  void record_kept_bytes(const std::string& name, i64 bytes);
  /// Marks the device's progress if it is asynchronous and a trace is being recorded.
  std::optional<std::size_t> mark() const;
  /// Adds the device's execution of a range between two marks.
  void add_on_device(std::string_view name, std::size_t begin, std::size_t end, const RangeInfo& info);

  /// Returns the recorded ranges that are open, outermost first.
  const std::vector<TimedRange*>& open_ranges() const { return open_ranges_; }
  /// Ends the open ranges from index `first` on, and returns them. resume_ranges() continues them, so that each appears
  /// in pieces without the time in between.
  std::vector<TimedRange*> pause_ranges(std::size_t first);
  void resume_ranges(const std::vector<TimedRange*>& ranges);

 private:
  friend class TimedRange;
  struct DeviceRange {
    std::string name;
    std::size_t begin, end;
    RangeInfo info;
  };
  void set_detail();

  Detail detail_ = Detail::Off, timed_ = Detail::Off;
  std::map<std::string, double> seconds_;
  bool is_tracing_ = false;
  DeviceClock* clock_ = nullptr;
  Trace trace_;
  std::vector<DeviceRange> on_device_;
  std::vector<TimedRange*> open_ranges_;
};

/// Scope that adds its duration to `seconds`, also on exceptions, and reports the same duration to the profiler, unless
/// null, with Detail::Microbatch. Counters and sums of ranges therefore agree.
class CountedRange {
 public:
  /// `name` must outlive the range.
  CountedRange(double& seconds, Profiler* profiler, std::string_view name, RangeKind kind, const RangeInfo& info = {})
      : seconds_(seconds), profiler_(profiler), name_(name), kind_(kind), info_(info) {}
  ~CountedRange() {
    const Profiler::Clock::time_point now = Profiler::Clock::now();
    seconds_ += std::chrono::duration<double>(now - begin_).count();
    if (profiler_ && profiler_->is_enabled(Detail::Microbatch))
      profiler_->add(name_, Detail::Microbatch, kind_, begin_, now, info_);
  }
  CountedRange(const CountedRange&) = delete;
  CountedRange& operator=(const CountedRange&) = delete;

 private:
  double& seconds_;
  Profiler* profiler_;
  std::string_view name_;
  RangeKind kind_;
  RangeInfo info_;
  Profiler::Clock::time_point begin_ = Profiler::Clock::now();
};

/// Scope recorded as a range of a profiler, which may be null.
class TimedRange {
 public:
  TimedRange(Profiler* profiler, std::string_view name, Detail detail, const RangeInfo& info = {})
      : profiler_(profiler && profiler->is_enabled(detail) ? profiler : nullptr) {
    if (profiler_) begin(name, detail, info);
  }
  ~TimedRange() {
    if (profiler_) end();
  }
  TimedRange(const TimedRange&) = delete;
  TimedRange& operator=(const TimedRange&) = delete;

 private:
  friend class Profiler;
  void begin(std::string_view name, Detail detail, const RangeInfo& info);
  void end();
  void begin_piece();
  void end_piece();

  struct Open {
    std::string name;
    Detail detail;
    RangeInfo info;
    std::optional<std::size_t> mark;
    Profiler::Clock::time_point begin;
  };
  Profiler* profiler_;
  std::optional<Open> open_;
};

}  // namespace mcpp

// What one rank does when: named ranges of its time, for traces, and their sums, for timers. A rank has one Profiler,
// which is handed down to all that has ranges to tell of; while nobody listens, a range costs a comparison.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// How fine the part of a step is that a range stands for, from coarse to fine.
enum class Detail : u8 {
  Nothing,
  Phase,  ///< of a step: data, passes, the optimizer; a save, an evaluation
  Pass,   ///< of a microbatch, and what it waits for: messages, collectives
  Layer   ///< inside a pass
};

/// What a range's time counts as. Ranges of one kind never overlap.
enum class RangeKind : u8 {
  Work,           ///< in which others may lie
  Communication,  ///< inside a call of a group, but for messages of the pipeline: what exposes communication
  Message,        ///< inside a call of the pipeline's groups
  Bubble          ///< waiting for messages of the pipeline
};

/// What is known of a range beside its name; what is negative or empty is not.
struct RangeFacts {
  i64 iteration = -1;
  i64 microbatch = -1;
  i64 chunk = -1;               ///< of the model, in this rank
  i64 bytes = -1;               ///< that the rank sends
  std::string_view group = {};  ///< of ranks; outlives the profiler
};

struct ProfiledRange {
  using Clock = std::chrono::steady_clock;
  std::string name;
  RangeKind kind = RangeKind::Work;
  Clock::time_point begin = {}, end = {};
  RangeFacts facts = {};
  bool is_on_device = false;  ///< when the processor did it, which works behind the host
};

/// The time of a processor that works behind the host, on the host's clock.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  /// Notes how far the work is that was queued so far. Rising numbers. What fails is told by time_of().
  virtual std::size_t mark() noexcept = 0;
  /// When it came there; waits for that.
  virtual ProfiledRange::Clock::time_point time_of(std::size_t mark) = 0;
};

/// Of the one thread that trains.
class Profiler {
 public:
  using Clock = ProfiledRange::Clock;
  /// Ranges that a trace may have: some 200 MB. Those after are counted.
  static constexpr std::size_t kMostRanges = 1'000'000;

  bool wants(Detail detail) const { return detail <= detail_; }

  /// Sums of ranges are kept, up to this detail.
  void time(Detail detail);
  /// Seconds by name since the last call.
  std::map<std::string, double> take_seconds();

  /// Ranges of any detail are kept from now on. `clock`, if any, must live until stop().
  void start(DeviceClock* clock);
  bool is_tracing() const { return is_tracing_; }
  struct Trace {
    std::vector<ProfiledRange> ranges;  ///< by their ends
    i64 left_out = 0;                   ///< beyond kMostRanges
    std::map<std::string, i64> kept;    ///< bytes, by what keep() was told of
  };
  Trace stop();

  /// For who has read the clock already. Only what wants() says. Those of a group have its name before theirs.
  void add(std::string_view name, Detail detail, RangeKind kind, Clock::time_point begin, Clock::time_point end,
           const RangeFacts& facts = {});
  /// Bytes that forward of a part of the model left behind, in one pass; of all passes of a trace the most counts.
  void keep(const std::string& name, i64 bytes);
  /// Where the processor is, when it works behind the host and a trace is made.
  std::optional<std::size_t> mark() const;
  /// The same range once more, as the processor works it off.
  void add_on_device(std::string_view name, std::size_t begin, std::size_t end, const RangeFacts& facts);

 private:
  struct DeviceRange {
    std::string name;
    std::size_t begin, end;
    RangeFacts facts;
  };
  void set_detail();

  Detail detail_ = Detail::Nothing, timed_ = Detail::Nothing;
  std::map<std::string, double> seconds_;
  bool is_tracing_ = false;
  DeviceClock* clock_ = nullptr;
  Trace trace_;
  std::vector<DeviceRange> on_device_;
};

/// Time that a counter counts: from its construction to its end, also when that is an error, it is added to `seconds`
/// and told to the profiler, if there is one, with the detail of a Pass. So sums of ranges are what counters say.
class CountedRange {
 public:
  /// The name outlives this.
  CountedRange(double& seconds, Profiler* profiler, std::string_view name, RangeKind kind, const RangeFacts& facts = {})
      : seconds_(seconds), profiler_(profiler), name_(name), kind_(kind), facts_(facts) {}
  ~CountedRange() {
    const Profiler::Clock::time_point now = Profiler::Clock::now();
    seconds_ += std::chrono::duration<double>(now - begin_).count();
    if (profiler_ && profiler_->wants(Detail::Pass)) profiler_->add(name_, Detail::Pass, kind_, begin_, now, facts_);
  }
  CountedRange(const CountedRange&) = delete;
  CountedRange& operator=(const CountedRange&) = delete;

 private:
  double& seconds_;
  Profiler* profiler_;
  std::string_view name_;
  RangeKind kind_;
  RangeFacts facts_;
  Profiler::Clock::time_point begin_ = Profiler::Clock::now();
};

/// A range from its construction to its end, of a profiler that may be null.
class TimedRange {
 public:
  TimedRange(Profiler* profiler, std::string_view name, Detail detail, const RangeFacts& facts = {})
      : profiler_(profiler && profiler->wants(detail) ? profiler : nullptr) {
    if (profiler_) begin(name, detail, facts);
  }
  ~TimedRange() {
    if (profiler_) end();
  }
  TimedRange(const TimedRange&) = delete;
  TimedRange& operator=(const TimedRange&) = delete;

 private:
  void begin(std::string_view name, Detail detail, const RangeFacts& facts);
  void end();

  struct Open {
    std::string name;
    Detail detail;
    RangeFacts facts;
    std::optional<std::size_t> mark;
    Profiler::Clock::time_point begin;
  };
  Profiler* profiler_;
  std::optional<Open> open_;
};

}  // namespace mcpp

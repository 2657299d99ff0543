#include "tensor/profiler.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace mcpp {

void Profiler::set_detail() {
  detail_ = is_tracing_ ? Detail::Layer : timed_;
}

void Profiler::enable_timers(Detail detail) {
  timed_ = detail;
  set_detail();
}

std::map<std::string, double> Profiler::take_seconds() {
  return std::exchange(seconds_, {});
}

void Profiler::start(DeviceClock* clock) {
  trace_ = {};
  on_device_.clear();
  clock_ = clock;
  is_tracing_ = true;
  set_detail();
}

Profiler::Trace Profiler::stop() {
  is_tracing_ = false;
  set_detail();
  for (DeviceRange& range : on_device_) {
    trace_.ranges.push_back({.name = std::move(range.name),
                             .kind = RangeKind::Work,
                             .begin = clock_->time_of(range.begin),
                             .end = clock_->time_of(range.end),
                             .info = range.info,
                             .is_on_device = true});
  }
  on_device_.clear();
  clock_ = nullptr;
  return std::exchange(trace_, {});
}

void Profiler::add(std::string_view name, Detail detail, RangeKind kind, Clock::time_point begin, Clock::time_point end,
                   const RangeInfo& info) {
  std::string full_name = info.group.empty() ? std::string(name) : str(info.group, " ", name);
  if (detail <= timed_) seconds_[full_name] += std::chrono::duration<double>(end - begin).count();
  if (!is_tracing_) return;
  if (trace_.ranges.size() >= kMaxRanges) {
    ++trace_.dropped_ranges;
    return;
  }
  trace_.ranges.push_back({.name = std::move(full_name), .kind = kind, .begin = begin, .end = end, .info = info});
}

void Profiler::record_kept_bytes(const std::string& name, i64 bytes) {
  if (!is_tracing_) return;
  const auto [kept, is_new] = trace_.saved_bytes.try_emplace(name, bytes);
  if (!is_new) kept->second = std::max(kept->second, bytes);
}

std::optional<std::size_t> Profiler::mark() const {
  if (!clock_ || on_device_.size() >= kMaxRanges) return std::nullopt;
  return clock_->mark();
}

void Profiler::add_on_device(std::string_view name, std::size_t begin, std::size_t end, const RangeInfo& info) {
  if (is_tracing_) on_device_.push_back({std::string(name), begin, end, info});
}

std::vector<TimedRange*> Profiler::pause_ranges(std::size_t first) {
  std::vector<TimedRange*> paused(open_ranges_.begin() + static_cast<std::ptrdiff_t>(first), open_ranges_.end());
  for (auto range = paused.rbegin(); range != paused.rend(); ++range) (*range)->end_piece();
  open_ranges_.resize(first);
  return paused;
}

void Profiler::resume_ranges(const std::vector<TimedRange*>& ranges) {
  for (TimedRange* range : ranges) {
    range->begin_piece();
    open_ranges_.push_back(range);
  }
}

void TimedRange::begin(std::string_view name, Detail detail, const RangeInfo& info) {
  open_ = {.name = std::string(name), .detail = detail, .info = info, .mark = {}, .begin = {}};
  begin_piece();
  profiler_->open_ranges_.push_back(this);
}

/// Ends the range unless an exception destroys it while it is paused.
void TimedRange::end() {
  std::vector<TimedRange*>& open = profiler_->open_ranges_;
  if (open.empty() || open.back() != this) return;
  open.pop_back();
  end_piece();
}

void TimedRange::begin_piece() {
  open_->mark = profiler_->mark();
  open_->begin = Profiler::Clock::now();
}

void TimedRange::end_piece() {
  const auto now = Profiler::Clock::now();
  profiler_->add(open_->name, open_->detail, RangeKind::Work, open_->begin, now, open_->info);
  if (!open_->mark) return;
  if (const auto mark = profiler_->mark()) profiler_->add_on_device(open_->name, *open_->mark, *mark, open_->info);
}

}  // namespace mcpp

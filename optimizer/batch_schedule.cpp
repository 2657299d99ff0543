#include "optimizer/batch_schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr std::string_view kScheduleKey = "training.step_batch_size_schedule";
constexpr i64 kMax = std::numeric_limits<i64>::max();

[[noreturn]] void fail_entry(std::string_view entry, std::string_view what) {
  fail(ExitCode::BadInput, kScheduleKey, ": \"", entry, "\" ", what,
       "; write threshold:batch_size pairs, as in \"0:768 250B:1536\"");
}

/// 1 without a suffix, 0 for an unknown one.
double suffix_factor(std::string_view suffix) {
  if (suffix.empty()) return 1;
  if (suffix.size() != 1) return 0;
  switch (suffix[0]) {
    case 'K':
    case 'k':
      return 1e3;
    case 'M':
    case 'm':
      return 1e6;
    case 'B':
    case 'b':
      return 1e9;
    case 'T':
    case 't':
      return 1e12;
    default:
      return 0;
  }
}

/// "1.5B" -> 1500000000.
i64 parse_threshold(std::string_view entry, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const double factor = suffix_factor({end, text.data() + text.size()});
  if (error != std::errc() || factor == 0) {
    fail_entry(entry, "has a threshold that is not a number with an optional K, M, B or T");
  }
  const double count = value * factor;
  if (!(count >= 0) || count > 9e18) fail_entry(entry, "has a threshold outside 0 to 9e18");
  if (count != std::floor(count)) fail_entry(entry, "has a threshold that is not whole");
  return static_cast<i64>(count);
}

i64 parse_size(std::string_view entry, std::string_view text) {
  i64 size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size < 1) {
    fail_entry(entry, "has a batch size that is not a whole number above 0");
  }
  return size;
}

/// What stands between white space.
std::vector<std::string_view> words(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::vector<std::string_view> result;
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    result.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpace, end);
  }
  return result;
}

}  // namespace

BatchSchedule::BatchSchedule(std::vector<Step> steps, BatchShape shape, std::string_view key)
    : steps_(std::move(steps)), shape_(shape) {
  check_input(shape.micro_batch_size >= 1 && shape.data_parallel_size >= 1,
              "training.micro_batch_size and the data-parallel size must be at least 1 (have ", shape.micro_batch_size,
              " and ", shape.data_parallel_size, ")");
  const i64 unit = shape.micro_batch_size * shape.data_parallel_size;
  for (const Step& step : steps_) {
    const i64 below = step.global_batch_size / unit * unit;
    check_input(step.global_batch_size >= 1 && step.global_batch_size % unit == 0, key, ": a batch of ",
                step.global_batch_size, " cannot be cut into microbatches of ", shape.micro_batch_size, " samples on ",
                shape.data_parallel_size, " data-parallel ranks; the nearest sizes are ",
                below > 0 ? str(below, " and ") : "", below + unit);
  }
}

BatchSchedule BatchSchedule::constant(i64 global_batch_size, BatchShape shape) {
  return BatchSchedule({{0, global_batch_size}}, shape, "training.global_batch_size");
}

BatchSchedule BatchSchedule::parse(std::string_view text, i64 seq_length, BatchShape shape) {
  std::vector<Step> steps;
  for (const std::string_view entry : words(text)) {
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) fail_entry(entry, "has no colon");
    const i64 threshold = parse_threshold(entry, entry.substr(0, colon));
    const Step step{seq_length > 0 ? threshold / seq_length : threshold, parse_size(entry, entry.substr(colon + 1))};
    if (steps.empty() && threshold != 0) fail_entry(entry, "comes first, so its threshold must be 0");
    if (!steps.empty() && step.first_sample <= steps.back().first_sample) {
      fail_entry(entry, "does not begin at least one sample after the entry before it");
    }
    if (!steps.empty() && step.global_batch_size <= steps.back().global_batch_size) {
      fail_entry(entry, "does not have a larger batch size than the entry before it");
    }
    steps.push_back(step);
  }
  if (steps.empty()) fail_entry(text, "has no entry");
  return BatchSchedule(std::move(steps), shape, kScheduleKey);
}

i64 BatchSchedule::global_batch_size(i64 consumed_samples) const {
  const auto next = std::ranges::upper_bound(steps_, std::max<i64>(consumed_samples, 0), {}, &Step::first_sample);
  return std::prev(next)->global_batch_size;
}

i64 BatchSchedule::microbatches(i64 consumed_samples) const {
  return global_batch_size(consumed_samples) / (shape_.micro_batch_size * shape_.data_parallel_size);
}

i64 BatchSchedule::samples_after(i64 iterations) const {
  return advance(iterations, kMax).samples;
}

i64 BatchSchedule::iterations_within(i64 samples) const {
  return advance(kMax, samples).iterations;
}

BatchSchedule::Progress BatchSchedule::advance(i64 iterations, i64 samples) const {
  Progress done;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const i64 size = steps_[i].global_batch_size;
    const i64 affordable = std::min(iterations - done.iterations, (samples - done.samples) / size);
    // The step that crosses the next threshold is still of this size.
    const i64 wanted = i + 1 == steps_.size()
                           ? affordable
                           : (std::max<i64>(steps_[i + 1].first_sample - done.samples, 0) + size - 1) / size;
    const i64 taken = std::min(wanted, affordable);
    done.iterations += taken;
    done.samples += taken * size;
    if (taken < wanted) break;
  }
  return done;
}

}  // namespace mcpp

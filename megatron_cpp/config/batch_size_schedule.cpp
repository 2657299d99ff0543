#include "megatron_cpp/config/batch_size_schedule.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/integer_math.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::string_view kTokenSuffixes = "KMBT";  // thousands, millions, ...

/// Returns the samples of "1000" (samples) or "250B" (tokens converted to samples, rounded up).
std::optional<i64> to_samples(std::string_view text, i64 seq_length) {
  const std::size_t suffix = text.empty() ? std::string_view::npos : kTokenSuffixes.find(text.back());
  if (suffix == std::string_view::npos) return parse_number<i64>(text);
  const std::optional<double> number = parse_number<double>(text.substr(0, text.size() - 1));
  if (!number || !(*number >= 0)) return std::nullopt;
  const double tokens = *number * std::pow(1000.0, static_cast<double>(suffix + 1));
  if (tokens > 9e15 || tokens != std::trunc(tokens)) return std::nullopt;  // above this a double is inexact
  return ceil_div(static_cast<i64>(tokens), seq_length);
}

std::string step_problem(const BatchSizeStep& step, std::span<const BatchSizeStep> before, i64 micro_batch_size) {
  if (before.empty() && step.first_sample != 0) return "the first step must be at 0";
  if (!before.empty() && step.first_sample <= before.back().first_sample) return "must be later than the previous step";
  if (!before.empty() && step.batch_size <= before.back().batch_size) return "the batch size may only grow";
  if (step.batch_size < 1 || step.batch_size > 1000000) return "the batch size must be from 1 to 1000000";
  if (step.batch_size % micro_batch_size != 0) {
    return str("the batch size is not divisible by micro_batch_size ", micro_batch_size);
  }
  return "";
}

}  // namespace

BatchSizeSchedule parse_batch_size_schedule(std::span<const std::string> texts, i64 seq_length, i64 micro_batch_size) {
  BatchSizeSchedule schedule;
  for (const std::string& entry : split(join(texts, " "), ' ')) {
    if (entry.empty()) continue;
    const std::size_t colon = std::min(entry.find(':'), entry.size());
    const std::optional<i64> at = to_samples(std::string_view(entry).substr(0, colon), seq_length);
    const std::optional<i64> size =
        colon < entry.size() ? parse_number<i64>(std::string_view(entry).substr(colon + 1)) : std::nullopt;
    if (!at || *at < 0 || !size) {
      schedule.problems.push_back(str(
          "\"", entry, "\" is not of the form AT:SIZE, such as 0:768, 2000000:1024 (samples) or 250B:1536 (tokens)"));
      continue;
    }
    const BatchSizeStep step{*at, *size};
    const std::string problem = step_problem(step, schedule.steps, micro_batch_size);
    if (!problem.empty()) schedule.problems.push_back(str("\"", entry, "\": ", problem));
    schedule.steps.push_back(step);
  }
  if (!texts.empty() && schedule.steps.empty() && schedule.problems.empty()) schedule.problems.push_back("has no step");
  return schedule;
}

bool has_token_positions(std::span<const std::string> texts) {
  return std::ranges::any_of(
      texts, [](const std::string& text) { return text.find_first_of(kTokenSuffixes) != std::string::npos; });
}

i64 batch_size_at(std::span<const BatchSizeStep> steps, i64 consumed_samples) {
  MCPP_CHECK(!steps.empty());
  i64 size = steps.front().batch_size;
  for (const BatchSizeStep& step : steps) {
    if (step.first_sample <= consumed_samples) size = step.batch_size;
  }
  return size;
}

FullBatches full_batches(std::span<const BatchSizeStep> steps, i64 samples, i64 consumed_samples) {
  FullBatches done;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const i64 size = steps[i].batch_size;
    const i64 position = consumed_samples + done.samples;
    const i64 fitting = std::max<i64>(samples - position, 0) / size;
    // A size applies until the first iteration that starts at or after the next step; the last one applies to the end.
    i64 iterations = fitting;
    if (i + 1 < steps.size()) {
      const i64 until_next = std::max<i64>(steps[i + 1].first_sample - position, 0);
      iterations = std::min(fitting, until_next / size + (until_next % size > 0));
    }
    done.iterations += iterations;
    done.samples += iterations * size;
    if (consumed_samples + done.samples + size > samples) break;
  }
  return done;
}

}  // namespace mcpp

#include "megatron_cpp/inference/evaluation/task_requests.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace mcpp {
namespace {

/// Unicode whitespace as stripped by Python's str.rstrip(), in UTF-8.
constexpr std::array<std::string_view, 29> kWhitespace{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

/// Returns the number of bytes of `text` before the whitespace at its end.
std::size_t size_without_whitespace(std::string_view text) {
  while (true) {
    const auto it = std::ranges::find_if(kWhitespace, [&](std::string_view space) { return text.ends_with(space); });
    if (it == kWhitespace.end()) return text.size();
    text.remove_suffix(it->size());
  }
}

}  // namespace

EncodedPair encode_pair(const TaskEncoder& encoder, std::string context, std::string continuation) {
  const std::size_t size = size_without_whitespace(context);
  continuation.insert(0, context, size);
  context.resize(size);
  const auto encode = [&](const std::string& text) {
    std::vector<i32> ids = encoder.encode(text);
    const bool has_prefix = !ids.empty() && ids.front() == encoder.prefix;
    if (encoder.adds_prefix && !has_prefix) ids.insert(ids.begin(), encoder.prefix);
    return ids;
  };
  EncodedPair pair{.context = encode(context), .continuation = {}};
  const std::vector<i32> both = encode(context + continuation);
  if (context.empty()) pair.context = {encoder.prefix};
  const bool has_context = !both.empty() && both.front() == encoder.prefix;  // of a continuation alone
  const std::size_t begin = context.empty() ? (has_context ? 1 : 0) : std::min(pair.context.size(), both.size());
  pair.continuation.assign(both.begin() + static_cast<std::ptrdiff_t>(begin), both.end());
  return pair;
}

void add_requests(const Task& task, const TaskEncoder& encoder, i64 seq_length, TaskRequests& requests) {
  for (const TaskItem& item : task.items) {
    for (const std::string& continuation : item.continuations) {
      const EncodedPair pair = encode_pair(encoder, item.context, item.target_delimiter + continuation);
      const auto scored = static_cast<i64>(pair.continuation.size());
      check_input(scored > 0, task.place(item), ": the continuation \"", continuation,
                  "\" has no token of its own: the tokenizer merges it with the end of the context");
      check_input(scored <= seq_length, task.place(item), ": a continuation has ", scored,
                  " tokens, the model's seq_length is ", seq_length, " (or --window, where that is given)");
      const i64 total = static_cast<i64>(pair.context.size()) + scored, length = std::min(total, seq_length + 1);
      const auto begin = static_cast<i64>(requests.tokens.size());
      requests.windows.push_back({.begin = begin + total - length, .length = length, .scored = scored});
      requests.tokens.insert(requests.tokens.end(), pair.context.begin(), pair.context.end());
      requests.tokens.insert(requests.tokens.end(), pair.continuation.begin(), pair.continuation.end());
    }
  }
}

std::string pack(const TaskRequests& requests) {
  const u64 windows = requests.windows.size();
  std::string bytes;
  const auto add = [&](const auto* data, std::size_t count) {
    bytes.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
  };
  add(&windows, 1);
  add(requests.windows.data(), requests.windows.size());
  add(requests.tokens.data(), requests.tokens.size());
  return bytes;
}

TaskRequests unpack_requests(std::string_view bytes) {
  const auto take = [&](auto* data, std::size_t count) {
    std::memcpy(data, bytes.data(), count * sizeof(*data));
    bytes.remove_prefix(count * sizeof(*data));
  };
  u64 windows = 0;
  take(&windows, 1);
  TaskRequests requests;
  requests.windows.resize(windows);
  take(requests.windows.data(), windows);
  requests.tokens.resize(bytes.size() / sizeof(i32));
  take(requests.tokens.data(), requests.tokens.size());
  return requests;
}

std::vector<Likelihood> score_requests(GPTModel& stage, ParallelState& parallel, const TaskRequests& requests,
                                       ScoringOptions options) {
  options.compute_likeliest = true;
  std::vector<EvaluationWindow> by_length = requests.windows;
  std::ranges::stable_sort(by_length, std::greater{}, &EvaluationWindow::length);
  const TokenScores scores = score_windows(stage, parallel, requests.tokens, by_length, options);
  std::vector<Likelihood> likelihoods;
  for (const EvaluationWindow& window : requests.windows) {
    Likelihood& likelihood = likelihoods.emplace_back(Likelihood{.is_greedy = true});
    for (i64 i = window.begin + window.length - window.scored; i < window.begin + window.length; ++i) {
      likelihood.log_likelihood -= scores.nll[static_cast<std::size_t>(i)];
      likelihood.is_greedy = likelihood.is_greedy && scores.is_likeliest[static_cast<std::size_t>(i)];
    }
  }
  return likelihoods;
}

}  // namespace mcpp

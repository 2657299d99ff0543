#include "megatron_cpp/inference/evaluation/tasks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "comm/object_collectives.h"
#include "data/preprocess/input_files.h"
#include "data/preprocess/text_source.h"
#include "megatron_cpp/inference/inference.h"

namespace mcpp {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

std::vector<std::string> continuations_of(const nlohmann::json& object) {
  const auto it = object.find("continuations");
  check_input(it != object.end(), "has no key \"continuations\"");
  check_input(it->is_array() && !it->empty(), "\"continuations\" is not a list of at least one string");
  std::vector<std::string> continuations;
  for (const nlohmann::json& continuation : *it) {
    check_input(continuation.is_string() && !continuation.get_ref<const std::string&>().empty(),
                "\"continuations\" must contain non-empty strings only");
    continuations.push_back(continuation.get<std::string>());
  }
  return continuations;
}

std::vector<i64> answers_of(const nlohmann::json& object, i64 continuations) {
  const auto it = object.find("answer");
  const bool is_list = it != object.end() && it->is_array() && !it->empty();
  check_input(it != object.end(), "has no key \"answer\"; it is the index of the correct one of the ", continuations,
              " continuations, counted from 0");
  std::vector<i64> answers;
  for (const nlohmann::json& answer : is_list ? *it : nlohmann::json::array({*it})) {
    const i64 number = answer.is_number_integer() ? answer.get<i64>() : -1;
    check_input(number >= 0 && number < continuations, "\"answer\" is ", answer.dump(),
                "; it must be a number from 0 to ", continuations - 1, ", or a list of such numbers");
    answers.push_back(number);
  }
  return answers;
}

TaskItem parse_item(std::string_view line) {
  const nlohmann::json object = parse_json_line(line);
  TaskItem item{.context = text_member(object, "context"), .continuations = continuations_of(object), .answers = {}};
  if (object.contains("target_delimiter")) item.target_delimiter = text_member(object, "target_delimiter");
  const auto count = static_cast<i64>(item.continuations.size());
  if (count > 1) item.answers = answers_of(object, count);
  if (count == 1 && object.contains("answer")) answers_of(object, count);  // has no effect, but must be valid
  return item;
}

/// Returns the name without folder and extensions: "arc" for tasks/arc.jsonl.gz.
std::string name_of(const Path& file) {
  Path name = file.filename();
  if (const Path compression_name = name.extension(); compression_name == ".gz" || compression_name == ".zst")
    name = name.stem();
  return name.stem().string();
}

}  // namespace

std::string Task::location(const TaskItem& item) const {
  return str(file.string(), ":", item.line);
}

Task read_task(const Path& file) {
  Task task{.name = name_of(file), .file = file, .items = {}};
  TextSource source(file);
  i64 number = 0;
  for (TextChunk chunk; source.next(chunk, kChunkBytes, SplitMode::Line);) {
    for (std::string_view text = chunk.text; !text.empty();) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      ++number;
      if (is_blank(line)) continue;
      try {
        TaskItem item = parse_item(line);
        item.line = number;
        const bool is_choice = item.continuations.size() > 1;
        check_input(task.items.empty() || is_choice == task.is_choice(), "has ", item.continuations.size(),
                    " continuations, line ", task.items.empty() ? 0 : task.items[0].line,
                    is_choice ? " but one" : " several", "; write items of each kind to a separate file");
        task.items.push_back(std::move(item));
      } catch (const Error& error) {
        fail(error.code(), file.string(), ":", number, ": ", error.what());
      }
    }
  }
  check_input(!task.items.empty(), file.string(), ": contains no items to evaluate");
  return task;
}

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

TaskEncoder task_encoder(Tokenizer tokenizer, const SpecialTokens& special) {
  const i32 prefix = special.text_begin(tokenizer);
  const auto shared = std::make_shared<const Tokenizer>(std::move(tokenizer));
  return {.encode = [shared](std::string_view text) { return shared->encode(text); },
          .prefix = prefix,
          .adds_prefix = special.adds_bos};
}

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
  const std::vector<i32> tokens = encode(context + continuation);
  if (context.empty()) pair.context = {encoder.prefix};
  const bool has_context = !tokens.empty() && tokens.front() == encoder.prefix;  // of a continuation alone
  const std::size_t begin = context.empty() ? (has_context ? 1 : 0) : std::min(pair.context.size(), tokens.size());
  pair.continuation.assign(tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.end());
  return pair;
}

void add_requests(const Task& task, const TaskEncoder& encoder, i64 seq_length, TaskRequests& requests) {
  for (const TaskItem& item : task.items) {
    for (const std::string& continuation : item.continuations) {
      const EncodedPair pair = encode_pair(encoder, item.context, item.target_delimiter + continuation);
      const auto scored = static_cast<i64>(pair.continuation.size());
      check_input(scored > 0, task.location(item), ": the continuation \"", continuation,
                  "\" has no separate token: the tokenizer merges it with the end of the context");
      check_input(scored <= seq_length, task.location(item), ": a continuation has ", scored,
                  " tokens, the model's seq_length is ", seq_length, " (or --window, if set)");
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

namespace {

/// Returns the scores of consecutive windows, whose tokens are consecutive too. Collective over `parallel`; arguments
/// and results are identical on all ranks.
std::vector<Likelihood> score_requests(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                                       std::span<const EvaluationWindow> windows, ScoringOptions options) {
  options.compute_most_likely = true;
  const i64 begin = windows.front().begin, end = windows.back().begin + windows.back().length;
  std::vector<EvaluationWindow> by_length(windows.begin(), windows.end());
  for (EvaluationWindow& window : by_length) window.begin -= begin;
  std::ranges::stable_sort(by_length, std::greater{}, &EvaluationWindow::length);
  const TokenScores scores = score_windows(
      stage, parallel, tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
      by_length, options);
  std::vector<Likelihood> likelihoods;
  for (const EvaluationWindow& window : windows) {
    Likelihood& likelihood = likelihoods.emplace_back(Likelihood{.is_greedy = true});
    const i64 last = window.begin - begin + window.length;
    for (i64 i = last - window.scored; i < last; ++i) {
      likelihood.log_likelihood -= scores.nll[static_cast<std::size_t>(i)];
      likelihood.is_greedy = likelihood.is_greedy && scores.is_most_likely[static_cast<std::size_t>(i)];
    }
  }
  return likelihoods;
}

/// Returns the number of code points of UTF-8 text.
double characters(const std::string& text) {
  return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Returns true if the first of the largest log-likelihoods per `size(continuation)` is an answer.
template <class Size>
bool chooses_answer(const TaskItem& item, const std::vector<Likelihood>& likelihoods, Size&& size) {
  std::vector<double> scores;
  for (std::size_t i = 0; i < likelihoods.size(); ++i)
    scores.push_back(likelihoods[i].log_likelihood / size(item.continuations[i]));
  const i64 chosen = std::ranges::max_element(scores) - scores.begin();
  return std::ranges::count(item.answers, chosen) > 0;
}

ItemScores score_item(const TaskItem& item, std::span<const Likelihood> likelihoods) {
  ItemScores scores{.continuations = {likelihoods.begin(), likelihoods.end()}};
  if (item.continuations.size() == 1) {
    scores.acc = likelihoods[0].is_greedy;
    return scores;
  }
  const auto chooses = [&](auto&& size) { return chooses_answer(item, scores.continuations, size); };
  scores.acc = chooses([](const std::string&) { return 1.0; });
  scores.acc_norm = chooses(characters);
  scores.acc_bytes = chooses([](const std::string& text) { return static_cast<double>(text.size()); });
  return scores;
}

TaskMetric mean_of(const std::string& name, const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  TaskMetric metric{
      .name = name, .value = std::accumulate(values.begin(), values.end(), 0.0) / count, .standard_error = {}};
  if (values.size() < 2) return metric;
  double squares = 0;
  for (const double value : values) squares += (value - metric.value) * (value - metric.value);
  metric.standard_error = std::sqrt(squares / (count - 1) / count);
  return metric;
}

TaskMetric share_of(const std::string& name, const std::vector<ItemScores>& items, bool ItemScores::*is_right) {
  std::vector<double> values;
  for (const ItemScores& item : items) values.push_back(item.*is_right ? 1 : 0);
  return mean_of(name, values);
}

TaskMetric perplexity_of(const std::vector<ItemScores>& items) {
  std::vector<double> losses;
  for (const ItemScores& item : items) losses.push_back(-item.continuations[0].log_likelihood);
  TaskMetric metric = mean_of("perplexity", losses);
  metric.value = std::exp(metric.value);
  if (metric.standard_error) metric.standard_error = metric.value * *metric.standard_error;
  return metric;
}

}  // namespace

TaskScores task_scores(const Task& task, std::span<const Likelihood> likelihoods) {
  TaskScores scores;
  for (const TaskItem& item : task.items) {
    scores.items.push_back(score_item(item, likelihoods.first(item.continuations.size())));
    likelihoods = likelihoods.subspan(item.continuations.size());
  }
  scores.metrics.push_back(share_of("acc", scores.items, &ItemScores::acc));
  if (task.is_choice()) {
    scores.metrics.push_back(share_of("acc_norm", scores.items, &ItemScores::acc_norm));
    scores.metrics.push_back(share_of("acc_bytes", scores.items, &ItemScores::acc_bytes));
  } else {
    scores.metrics.push_back(perplexity_of(scores.items));
  }
  return scores;
}

TaskSuite::TaskSuite(const std::vector<std::string>& patterns, const std::function<TaskEncoder()>& make_encoder,
                     i64 seq_length, Communicator& ranks)
    : requests_(unpack_requests(broadcast_from_rank0(ranks, [&] {
        const TaskEncoder encoder = make_encoder();
        TaskRequests requests;
        for (const std::string& file : expand_patterns(patterns)) {
          tasks_.push_back(read_task(file));
          add_requests(tasks_.back(), encoder, seq_length, requests);
        }
        return pack(requests);
      }))) {}

std::optional<std::vector<TaskResult>> TaskSuite::score(GPTModel& stage, ParallelState& parallel,
                                                        const ScoringOptions& options,
                                                        const std::function<bool()>& should_stop) const {
  // Large enough that padding to the longest window of a batch costs little.
  constexpr std::size_t kWindowsBetweenStops = 1024;
  std::vector<Likelihood> likelihoods;
  const i64 all = std::ssize(requests_.windows);
  while (std::ssize(likelihoods) < all) {
    if (should_stop()) return std::nullopt;
    const i64 done = std::ssize(likelihoods);
    ScoringOptions part = options;
    part.progress = [&](i64 scored, i64) { options.progress(done + scored, all); };
    const std::span<const EvaluationWindow> rest = std::span(requests_.windows).subspan(likelihoods.size());
    for (const Likelihood& likelihood : score_requests(stage, parallel, requests_.tokens,
                                                       rest.first(std::min(rest.size(), kWindowsBetweenStops)), part))
      likelihoods.push_back(likelihood);
  }
  std::vector<TaskResult> results;
  std::span<const Likelihood> rest = likelihoods;
  for (const Task& task : tasks_) {
    std::size_t count = 0;
    for (const TaskItem& item : task.items) count += item.continuations.size();
    results.push_back({task, task_scores(task, rest.first(count))});
    rest = rest.subspan(count);
  }
  return results;
}

std::vector<std::string> TaskSuite::names() const {
  std::vector<std::string> names;
  for (const Task& task : tasks_) names.push_back(task.name);
  return names;
}

std::string samples_as_jsonl(const Task& task, const TaskScores& scores) {
  std::string lines;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const ItemScores& item = scores.items[i];
    nlohmann::ordered_json json{{"task", task.name}, {"line", task.items[i].line}, {"acc", item.acc}};
    if (task.is_choice()) json.update({{"acc_norm", item.acc_norm}, {"acc_bytes", item.acc_bytes}});
    for (const Likelihood& likelihoods : item.continuations) {
      json["log_likelihoods"].push_back(likelihoods.log_likelihood);
      json["is_greedy"].push_back(likelihoods.is_greedy);
    }
    lines += json.dump() + "\n";
  }
  return lines;
}

}  // namespace mcpp

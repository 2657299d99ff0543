#include "megatron_cpp/resume/stage_progress.h"

#include <algorithm>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/config/config_compare.h"

namespace mcpp {
namespace {

constexpr const char* kName = "stage_name";
/// Number, first iteration, iterations, first sample, trained iterations.
constexpr const char* kPosition = "stage_position";
constexpr const char* kTextStarts = "stage_text_starts";

std::string numbers_text(const std::vector<i64>& numbers) {
  std::vector<std::string> words;
  for (const i64 number : numbers) words.push_back(str(number));
  return join(words, " ");
}

std::vector<i64> parse_numbers(const RunState& run, const char* name, const std::string& checkpoint) {
  std::vector<i64> numbers;
  const auto it = run.extra.find(name);
  if (it == run.extra.end() || it->second.empty()) return numbers;
  for (const std::string& word : split(it->second, ' ')) {
    const std::optional<i64> number = parse_number<i64>(word);
    check_input(number.has_value(), checkpoint, ": ", name, " is damaged: \"", it->second, "\"");
    numbers.push_back(*number);
  }
  return numbers;
}

std::string stage_text(const SavedStage& stage) {
  return str("stage ", stage.number, stage.name == str(stage.number) ? "" : str(", ", str("\"", stage.name, "\"")));
}

}  // namespace

void store_stage(const Config& config, const StageProgress& progress, RunState& run) {
  if (!config.stage) return;
  const Stage& stage = *config.stage;
  run.extra[kName] = stage.name;
  run.extra[kPosition] = numbers_text(
      {stage.number, stage.first_iteration, stage.iterations, stage.first_sample, progress.trained_iterations});
  run.extra[kTextStarts] = numbers_text(progress.text_starts);
}

SavedStage read_stage(const RunState& run, const std::string& checkpoint) {
  SavedStage stage;
  const std::vector<i64> position = parse_numbers(run, kPosition, checkpoint);
  if (position.empty()) return stage;
  check_input(position.size() == 5, checkpoint, ": ", kPosition, " is damaged");
  stage.number = position[0];
  stage.first_iteration = position[1];
  stage.iterations = position[2];
  stage.first_sample = position[3];
  stage.trained_iterations = position[4];
  stage.text_starts = parse_numbers(run, kTextStarts, checkpoint);
  const auto name = run.extra.find(kName);
  if (name != run.extra.end()) stage.name = name->second;
  return stage;
}

bool check_same_stage(const Config& config, const RunState& run, const std::string& checkpoint) {
  const SavedStage saved = read_stage(run, checkpoint);
  constexpr const char* kAdvice = "; to start a new run from its weights, set checkpoint.finetune and a different save";
  if (!config.stage) {
    check_input(saved.number == 0, checkpoint, ": was saved in ", stage_text(saved),
                " of a run with stages, and this configuration has none; add its [[stage]] tables again", kAdvice);
    return true;
  }
  const Stage& stage = *config.stage;
  check_input(saved.number > 0, checkpoint,
              ": belongs to a run without stages, which reads its samples in a different order", kAdvice);
  const std::string where = str(checkpoint, ": was saved at iteration ", run.iteration, " in ", stage_text(saved));
  constexpr const char* kSetBack = "; set the lengths and batch sizes of the stages up to this one back";
  if (saved.number != stage.number) {
    check_input(!stage.resumes_at(run.iteration), where, ", and this iteration now belongs to ", stage.title(),
                kSetBack);
    return false;
  }
  check_input(saved.first_iteration == stage.first_iteration && saved.first_sample == stage.first_sample, where,
              ", which began after ", saved.first_iteration, " iterations and ", saved.first_sample,
              " samples, and now begins after ", stage.first_iteration, " and ", stage.first_sample, kSetBack);
  check_input(stage.is_last() || run.iteration <= stage.last_iteration(), where, ", which now ends after iteration ",
              stage.last_iteration(), kSetBack);
  return true;
}

void check_fixed_in_stage(const Config& saved, const Config& now, const std::string& checkpoint) {
  if (!now.stage) return;
  for (const Difference& difference : differences(saved, now)) {
    check_input(difference.key != "training.global_batch_size" && difference.key != "model.seq_length", checkpoint,
                ": ", difference.key, ": ", difference.before, " in the checkpoint, ", difference.now,
                " now, but it cannot change within ", now.stage->title(),
                "; set it back, or end this stage at the iteration of the checkpoint and add another stage");
  }
}

void check_text_starts(const Config& config, const StageProgress& saved, const std::vector<std::vector<i64>>& starts) {
  if (!config.stage || saved.number == 0 || starts.empty()) return;
  const std::vector<i64>& now = starts.at(static_cast<std::size_t>(saved.number - 1));
  check_input(saved.text_starts.size() == now.size(), config.checkpoint.save, ": stage ", saved.number, " began with ",
              saved.text_starts.size(), " datasets, and its data_path has ", now.size(),
              " now; set it back, or end this stage at the iteration of the checkpoint and add another stage");
  check_input(saved.text_starts == now, config.checkpoint.save, ": stage ", saved.number,
              " began to read its datasets at tokens ", numbers_text(saved.text_starts), ", and now begins at ",
              numbers_text(now),
              " (-1: repeat_data), because its datasets, repeat_data, or data or sequence length of earlier stages "
              "changed; set them back");
}

void set_schedule_lengths(const SavedStage& stage, Config& saved, Config& now) {
  if (!now.stage || !now.stage->has_own_schedule) return;
  saved.training.train_iters = stage.iterations;
  now.training.train_iters = now.stage->iterations;
}

}  // namespace mcpp

#include "megatron_cpp/config/stages.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "base/check.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/config/data_files.h"
#include "megatron_cpp/config/unused_keys.h"

namespace mcpp {
namespace {

/// Keys of sections that a stage may set, in addition to the keys of [parallel] that do not define the run.
constexpr auto kStageKeys = std::to_array<std::string_view>({"model.seq_length",
                                                             "model.max_position_embeddings",
                                                             "model.rotary_base",
                                                             "model.rope_local_base_freq",
                                                             "model.rope_scaling_type",
                                                             "model.rope_scaling_factor",
                                                             "model.rope_scaling_original_max_position_embeddings",
                                                             "model.rope_scaling_low_freq_factor",
                                                             "model.rope_scaling_high_freq_factor",
                                                             "model.rope_scaling_beta_fast",
                                                             "model.rope_scaling_beta_slow",
                                                             "model.rope_scaling_mscale",
                                                             "model.rope_scaling_mscale_all_dim",
                                                             "model.rope_scaling_attention_factor",
                                                             "model.rope_scaling_truncate",
                                                             "model.hidden_dropout",
                                                             "model.attention_dropout",
                                                             "model.mtp_loss_scaling_factor",
                                                             "training.micro_batch_size",
                                                             "training.global_batch_size",
                                                             "training.eval_interval",
                                                             "training.eval_iters",
                                                             "training.recompute_granularity",
                                                             "training.recompute_method",
                                                             "training.recompute_num_layers",
                                                             "training.recompute_modules",
                                                             "training.distribute_saved_activations",
                                                             "training.offload_activations",
                                                             "optimizer.lr",
                                                             "optimizer.min_lr",
                                                             "optimizer.lr_decay_style",
                                                             "optimizer.lr_decay_iters",
                                                             "optimizer.lr_warmup_fraction",
                                                             "optimizer.lr_warmup_iters",
                                                             "optimizer.lr_warmup_init",
                                                             "optimizer.lr_wsd_decay_style",
                                                             "optimizer.lr_wsd_decay_iters",
                                                             "optimizer.weight_decay",
                                                             "optimizer.clip_grad",
                                                             "optimizer.offload_folder",
                                                             "data.data_path",
                                                             "data.train_data_path",
                                                             "data.valid_data_path",
                                                             "data.test_data_path",
                                                             "data.data_args_path",
                                                             "data.per_split_data_args_path",
                                                             "data.multiple_validation_sets",
                                                             "data.full_validation",
                                                             "data.reset_position_ids",
                                                             "data.reset_attention_mask",
                                                             "data.eod_mask_loss",
                                                             "data.fim_rate",
                                                             "data.fim_spm_rate",
                                                             "data.fim_split_sample",
                                                             "data.fim_fragment_rate",
                                                             "data.fim_no_prefix",
                                                             "data.fim_prefix_token",
                                                             "data.fim_middle_token",
                                                             "data.fim_suffix_token",
                                                             "data.fim_pad_token",
                                                             "checkpoint.save_interval"});

/// Max tokens of a stage. The sum of many stages is representable.
constexpr i64 kMaxTokens = 9'000'000'000'000'000;

/// Keys that a stage may set outside of its sections.
struct StageKeys {
  std::string name;
  i64 train_iters = 0;
  i64 train_samples = 0;
  i64 train_tokens = 0;
  bool repeat_data = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("name", self.name, "name of the stage in messages and logs; empty = its number");
    visit("train_iters", self.train_iters, "iterations of the stage; set this, train_samples or train_tokens",
          between(0, 1e12));
    visit("train_samples", self.train_samples, "samples of the stage, instead of train_iters", between(0, 1e15));
    visit("train_tokens", self.train_tokens, "tokens of the stage, instead of train_iters", between(0, 9e15));
    visit("repeat_data", self.repeat_data,
          "restart each dataset, instead of continuing it where the earlier stages stopped");
  }
};

bool starts_schedule(std::string_view key) {
  return key == "optimizer.lr" || key == "optimizer.min_lr" || key.starts_with("optimizer.lr_");
}

/// Reads one [[stage]] table into a copy of the base configuration.
class StageReader {
 public:
  StageReader(const Config& base, const TableSettings& table, i64 number)
      : number_(number), location_(table.location), config_(base), reader_(all_fields()) {
    config_.stages.clear();
    const bool has_own_schedule = std::ranges::any_of(table.settings, [&](const Setting& setting) {
      const Field* field = reader_.find(setting.key);
      return field != nullptr && starts_schedule(field->key);
    });
    if (has_own_schedule) reset_schedule();
    for (const Setting& setting : table.settings) {
      if (!refuse_fixed_key(setting)) reader_.assign(setting);
    }
    const bool is_constant = config_.optimizer.lr_decay_style == LrDecayStyle::Constant;
    if (has_own_schedule && is_constant && !reader_.was_set("optimizer.min_lr")) config_.optimizer.min_lr = 0;
    if (keys_.name.empty()) keys_.name = str(number_);
    config_.stage =
        Stage{.name = keys_.name, .number = number_, .has_own_schedule = has_own_schedule, .texts = {}, .toml = {}};
    if (config_.training.global_batch_size == 0) config_.training.global_batch_size = config_.training.micro_batch_size;
    read_data_files(config_.data, reader_, location_);
    config_.stage->toml = toml();
    set_length();
  }

  const Config& config() const { return config_; }
  const std::string& name() const { return keys_.name; }
  bool repeats_data() const { return keys_.repeat_data; }
  const std::vector<std::string>& problems() const { return reader_.problems(); }

  void add_conflict(const std::string& text) {
    reader_.add_conflict(text, str(location_, ": stage ", toml_string(keys_.name)));
  }

  /// Places the stage in its run, reports the rules that the run violates in this stage although it does not violate
  /// them elsewhere, and resets keys of the base configuration that have no effect in this stage.
  void complete(const Stage& stage, i64 run_iterations, const std::vector<std::string>& base_conflicts) {
    config_.stage = stage;
    config_.training.train_iters = run_iterations;
    config_.training.train_samples = 0;
    for (const std::string& text : config_.conflicts()) {
      const bool is_reported = std::ranges::count(base_conflicts, text) > 0;
      if (!is_reported || reader_.was_set(text.substr(0, text.find(':')))) add_conflict(text);
    }
    for (const UnusedKey& unused : unused_keys(config_)) {
      if (reader_.was_set(unused.key)) add_conflict(str(unused.key, ": ", unused.advice));
    }
    config_ = without_unused_keys(config_);
  }

 private:
  std::vector<Field> all_fields() {
    std::vector<Field> fields;
    list_fields(keys_, "", fields);
    for (Field& field : config_fields(config_)) fields.push_back(std::move(field));
    return fields;
  }

  /// The lengths of the run's schedule do not apply to a schedule of the stage.
  void reset_schedule() {
    OptimizerConfig& o = config_.optimizer;
    o.lr_decay_iters = o.lr_warmup_iters = o.lr_wsd_decay_iters = 0;
    o.lr_decay_samples = o.lr_warmup_samples = o.lr_wsd_decay_samples = 0;
    o.lr_warmup_fraction = o.lr_warmup_init = 0;
  }

  /// Reports a key that a stage cannot set. Returns false for any other key, known or not.
  bool refuse_fixed_key(const Setting& setting) {
    const Field* field = reader_.find(setting.key);
    if (field == nullptr || field->section().empty()) return false;
    const std::vector<std::string> allowed = stage_keys();
    if (std::ranges::count(allowed, field->key) > 0) return false;
    std::vector<std::string> names;
    for (const std::string& key : allowed) {
      if (key.starts_with(str(field->section(), "."))) names.push_back(key.substr(field->section().size() + 1));
    }
    const std::string section = str("[", kStageTable, ".", field->section(), "]");
    reader_.add_problem(str(setting.location, ": ", setting.spelling, ": cannot differ between stages; set it in [",
                            field->section(), "]. ",
                            names.empty() ? str("A stage has no section ", section)
                                          : str("The keys of ", section, " are ", join(names, ", "))));
    return true;
  }

  void set_length() {
    const i64 batch = config_.batch_sizes().front().batch_size, tokens = batch * config_.model.seq_length;
    const int lengths = (keys_.train_iters > 0) + (keys_.train_samples > 0) + (keys_.train_tokens > 0);
    const bool is_doubtful = reader_.is_doubtful("train_iters") || reader_.is_doubtful("train_samples") ||
                             reader_.is_doubtful("train_tokens");
    if (lengths == 0 && !is_doubtful)
      add_conflict("train_iters: is missing; set the length of the stage: train_iters, train_samples or train_tokens");
    if (lengths > 1) {
      add_conflict(str(keys_.train_samples > 0 ? "train_samples" : "train_tokens",
                       ": set only one of train_iters, train_samples and train_tokens"));
    }
    const i64 samples = keys_.train_samples > 0 ? keys_.train_samples : keys_.train_tokens / config_.model.seq_length;
    const i64 iterations = keys_.train_iters > 0 ? keys_.train_iters : samples / batch;
    if (lengths == 1 && iterations == 0) {
      add_conflict(keys_.train_samples > 0
                       ? str("train_samples: ", keys_.train_samples, " is less than one batch of ", batch, " samples")
                       : str("train_tokens: ", keys_.train_tokens, " is less than one batch of ", tokens, " tokens"));
    }
    config_.stage->iterations = std::max<i64>(iterations, 1);
    if (config_.stage->iterations > kMaxTokens / tokens) {
      add_conflict(str(keys_.train_iters > 0 ? "train_iters" : "train_samples", ": ", iterations, " iterations of ",
                       tokens, " tokens are more than the maximum of ", kMaxTokens, " tokens in a stage"));
      config_.stage->iterations = 1;
    }
    config_.stage->samples = config_.stage->iterations * batch;
  }

  /// Returns true for a key that the table sets. A file that lists datasets is replaced by the paths that it sets.
  bool is_printed(const Field& field) const {
    constexpr std::array<std::string_view, 2> kFiles{"data.data_args_path", "data.per_split_data_args_path"};
    if (std::ranges::count(kFiles, field.key) > 0) return false;
    const bool has_file = std::ranges::any_of(kFiles, [&](std::string_view key) { return reader_.was_set(key); });
    return reader_.was_set(field.key) || (has_file && field.section() == "data" && field.name().ends_with("data_path"));
  }

  /// Returns the table with the keys that it sets.
  std::string toml() const {
    std::string text = str("[[", kStageTable, "]]\n"), section;
    for (const Field& field : reader_.fields()) {
      if (!is_printed(field)) continue;
      if (field.section() != section) {
        section = field.section();
        text += str("\n[", kStageTable, ".", section, "]\n");
      }
      text += str(field.name(), " = ", field.print(), "\n");
    }
    return text;
  }

  i64 number_;
  std::string location_;
  StageKeys keys_;
  Config config_;
  SettingsReader reader_;  // last member: refers to the ones above
};

using StageReaders = std::vector<std::unique_ptr<StageReader>>;

/// Reports rules between the stages and the other sections.
void check_run(Config& config, SettingsReader& reader) {
  std::vector<std::string>& schedule = config.training.step_batch_size_schedule;
  if (!schedule.empty()) {
    reader.add_conflict(
        "training.step_batch_size_schedule: cannot be combined with stages; set global_batch_size in the stages", "");
    schedule.clear();
  }
  TrainingConfig& t = config.training;
  if (t.global_batch_size == 0) t.global_batch_size = t.micro_batch_size;
  if (config.checkpoint.save.empty() && reader.tables().size() > 1) {
    reader.add_conflict(
        "checkpoint.save: is missing; a stage continues from the checkpoint at the end of the stage before it",
        reader.tables()[1].location);
  }
}

/// Reports lengths of the run that contradict the lengths of its stages.
void check_lengths(const Config& config, i64 iterations, SettingsReader& reader) {
  const TrainingConfig& t = config.training;
  const std::string sum = str("the lengths of the stages add up to ", iterations, " iterations; remove it");
  if (t.train_iters > 0 && t.train_iters != iterations) reader.add_conflict("training.train_iters: " + sum, "");
  if (t.train_samples > 0) reader.add_conflict("training.train_samples: " + sum, "");
}

/// Reports stages with the same name, and stages whose learned positions differ in number.
void check_between_stages(const StageReaders& stages) {
  std::set<std::string> names;
  const ModelConfig& first = stages.front()->config().model;
  for (const auto& stage : stages) {
    if (!names.insert(stage->name()).second)
      stage->add_conflict(str("name: ", toml_string(stage->name()), " is also the name of an earlier stage"));
    const ModelConfig& model = stage->config().model;
    if (model.position_embedding_type != PositionEmbedding::LearnedAbsolute) continue;
    if (model.max_positions() != first.max_positions()) {
      stage->add_conflict(str("model.seq_length: learned position embeddings would change from ", first.max_positions(),
                              " to ", model.max_positions(),
                              "; set model.max_position_embeddings in [model] to the longest context of all stages"));
    }
  }
}

/// Places the stages one after the other.
void complete_stages(StageReaders& stages, const std::vector<std::string>& base_conflicts, i64 run_batch_size) {
  i64 run_iterations = 0;
  for (const auto& stage : stages) run_iterations += stage->config().stage->iterations;
  Stage next{.name = {}, .stages = std::ssize(stages), .texts = {}, .toml = {}};
  for (const auto& reader : stages) {
    const Config& config = reader->config();
    Stage stage = *config.stage;
    stage.stages = next.stages;
    stage.first_iteration = next.first_iteration;
    stage.first_sample = next.first_sample;
    stage.first_token = next.first_token;
    stage.run_iterations = run_iterations;
    stage.run_batch_size = run_batch_size;
    next.texts.push_back({.data = config.data,
                          .seq_length = config.model.seq_length,
                          .samples = stage.samples,
                          .repeat_data = reader->repeats_data()});
    stage.texts = next.texts;
    next.first_iteration = stage.last_iteration();
    next.first_sample = stage.last_sample();
    next.first_token += stage.samples * config.model.seq_length;
    reader->complete(stage, run_iterations, base_conflicts);
  }
}

std::string lr_text(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  if (!config.stage->has_own_schedule) return "as in the run";
  if (o.lr_decay_style == LrDecayStyle::Constant) return str(o.lr, ", constant");
  return str(o.lr, " to ", o.min_lr, ", ", enum_name(o.lr_decay_style));
}

}  // namespace

std::string Stage::title() const {
  return str("stage ", number, " of ", stages, name == str(number) ? "" : str(", ", toml_string(name)));
}

std::vector<std::string> stage_keys() {
  std::vector<std::string> keys(kStageKeys.begin(), kStageKeys.end());
  const std::vector<std::string> fixed = run_defining_keys();
  Config defaults;
  for (const Field& field : config_fields(defaults)) {
    if (field.section() == "parallel" && std::ranges::count(fixed, field.key) == 0) keys.push_back(field.key);
  }
  return keys;
}

std::string stage_help() {
  StageKeys defaults;
  std::vector<Field> fields;
  list_fields(defaults, "", fields);
  std::string text = str("[[", kStageTable, "]]  (part of a run; may be repeated)\n");
  for (const Field& field : fields) text += str("  ", pad_right(field.key, 16), describe_field(field), "\n");
  std::string section;
  for (const std::string& key : stage_keys()) {
    const std::size_t dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      text += str(text.ends_with("\n") ? "" : "\n", "  [", kStageTable, ".", section, "]  ");
    } else {
      text += ", ";
    }
    text += key.substr(dot + 1);
  }
  return text + "\n";
}

void read_stages(Config& config, SettingsReader& reader) {
  if (reader.tables().empty() || reader.is_incomplete()) return;
  check_run(config, reader);
  StageReaders stages;
  for (const TableSettings& table : reader.tables())
    stages.push_back(std::make_unique<StageReader>(config, table, std::ssize(stages) + 1));
  i64 iterations = 0;
  for (const auto& stage : stages) iterations += stage->config().stage->iterations;
  check_lengths(config, iterations, reader);
  config.training.train_iters = iterations;
  config.training.train_samples = 0;
  check_between_stages(stages);
  complete_stages(stages, config.conflicts(), config.batch_sizes().front().batch_size);
  for (const auto& stage : stages) {
    for (const std::string& problem : stage->problems()) reader.add_problem(problem);
    config.stages.push_back(stage->config());
  }
}

std::vector<Config> training_configs(const Config& config) {
  return config.stages.empty() ? std::vector{config} : config.stages;
}

const Config& stage_named(const Config& config, const std::string& name) {
  std::vector<std::string> names;
  for (const Config& stage : config.stages) {
    if (name.empty() || name == stage.stage->name) return stage;
    names.push_back(stage.stage->name);
  }
  fail(ExitCode::BadInput, "--stage: ", toml_string(name),
       names.empty() ? ": this configuration has no stages" : ": must be one of " + join(names, ", "));
}

std::size_t stage_at(const std::vector<Config>& stages, i64 iteration) {
  const auto found = std::ranges::find_if(
      stages, [&](const Config& config) { return !config.stage || config.stage->resumes_at(iteration); });
  MCPP_CHECK(found != stages.end(), "iteration ", iteration);
  return static_cast<std::size_t>(found - stages.begin());
}

TrainingLength run_length(const Config& config) {
  // A growing batch requires train_samples, and then no length is counted in iterations, so that any batch size
  // suffices.
  return {.train_iters = config.training.train_iters,
          .train_samples = config.training.train_samples,
          .global_batch_size = config.stage ? config.stage->run_batch_size : config.batch_sizes().front().batch_size};
}

TrainingLength lr_schedule_length(const Config& config) {
  if (!config.stage || !config.stage->has_own_schedule) return run_length(config);
  return {.train_iters = config.stage->iterations, .global_batch_size = config.batch_sizes().front().batch_size};
}

std::string describe_stages(const Config& config) {
  if (config.stages.empty()) return "";
  std::vector<std::vector<std::string>> rows{
      {"stage", "iterations", "samples", "of tokens", "tokens", "batch", "learning rate"}};
  for (const Config& stage : config.stages) {
    const Stage& s = *stage.stage;
    rows.push_back({s.name, str(s.first_iteration + 1, " to ", s.last_iteration()), str(s.samples),
                    str(stage.model.seq_length), human_count(static_cast<double>(s.samples * stage.model.seq_length)),
                    str(stage.batch_sizes().front().batch_size), lr_text(stage)});
  }
  std::string text = str("stages: ", config.stages.size(), "\n");
  for (const std::vector<std::string>& row : rows) {
    std::string line = " ";
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[column].size());
      line.append(" ").append(pad_right(row[column], column + 1 < row.size() ? width + 1 : 0));
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace mcpp

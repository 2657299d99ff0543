#include "data/dataset/datasets.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/number_format.h"
#include "base/object_store/node_cache.h"
#include "base/object_store/s3_path.h"
#include "base/philox.h"
#include "base/strings.h"
#include "data/dataset/blend.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/fim.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/loss_mask.h"

namespace mcpp {
namespace {

std::vector<double> parse_shares(const std::string& split_text) {
  const auto entries = split(split_text, ',');
  const auto fail_invalid = [&](std::string_view why) {
    fail(ExitCode::BadInput, "data.split = \"", split_text, "\": ", why,
         "; list up to three shares for training, validation and test, such as \"969,30,1\"");
  };
  if (entries.size() > 3) fail_invalid("too many shares");
  std::vector<double> shares;
  for (std::string_view entry : entries) {
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    const auto share = parse_number<double>(entry);
    if (!share) fail_invalid(str("\"", entry, "\" is not a number"));
    if (!(std::isfinite(*share) && *share >= 0)) fail_invalid(str(entry, " is not a valid share"));
    shares.push_back(*share);
  }
  shares.resize(3, 0.0);
  if (!(shares[0] + shares[1] + shares[2] > 0)) fail_invalid("the shares add up to 0");
  return shares;
}

/// Builds the datasets of one configuration and holds their shared state.
class Builder {
 public:
  Builder(const DataConfig& config, i64 seq_length, i64 seed, const Log& log, const IndexRanks& ranks)
      : config_(config), seq_length_(seq_length), seed_(seed), log_(log), ranks_(ranks) {
    if (config.fim_rate > 0) fim_ = std::make_shared<FimTransform>(config);
  }

  /// Builds one split of a list of prefixes. If `uses_all_text`, uses all of the text and ignores data.split.
  std::unique_ptr<Dataset> build(const std::vector<std::string>& entries, std::string_view key, std::size_t split,
                                 bool uses_all_text, std::optional<i64> num_samples) {
    const BlendList list = non_empty_entries(entries, key, split, uses_all_text);
    if (list.prefixes.empty()) return nullptr;
    // A single prefix is not blended unless data_path gives it a weight, as in Megatron-LM.
    if (list.prefixes.size() == 1 && (uses_all_text || !list.has_weights())) {
      return part(list.prefixes[0], split, uses_all_text, num_samples);
    }
    if (!list.has_weights()) return blend_by_size(list, key, split, uses_all_text, num_samples);
    check_input(num_samples.has_value(), "data.full_validation: a blend with weights (", key,
                ") is endless; remove the weights, or set data.multiple_validation_sets");
    return blend_by_weight(list, split, uses_all_text, *num_samples);
  }

  /// Builds the validation sets: a single one, or one per prefix if data.multiple_validation_sets is set.
  std::vector<ValidationSet> build_validation(const std::vector<std::string>& entries, std::string_view key,
                                              bool uses_all_text, i64 num_samples) {
    const std::optional<i64> samples = config_.full_validation ? std::nullopt : std::optional(num_samples);
    std::vector<ValidationSet> sets;
    if (!config_.multiple_validation_sets) {
      if (auto dataset = build(entries, key, kValid, uses_all_text, samples)) sets.push_back({"", std::move(dataset)});
      return sets;
    }
    const BlendList list = non_empty_entries(entries, key, kValid, uses_all_text);
    check_input(!uses_all_text || !list.has_weights(), key,
                ": data.multiple_validation_sets evaluates each dataset separately; remove the weights");
    const std::vector<std::string> names = validation_set_names(list.prefixes);
    for (std::size_t i = 0; i < names.size(); ++i)
      check_input(std::ranges::count(names, names[i]) == 1, key, ": ", names[i],
                  " is listed twice; with data.multiple_validation_sets list each dataset once");
    for (std::size_t i = 0; i < names.size(); ++i)
      sets.push_back({names[i], part(list.prefixes[i], kValid, uses_all_text, samples)});
    return sets;
  }

  /// Builds the training samples of the last stage.
  std::unique_ptr<Dataset> build_stage(std::span<const StageText> stages) {
    for (const StageText& stage : stages.first(stages.size() - 1)) read_stage(stage);
    const StageText& stage = stages.back();
    const StageBlend blend = read_stage(stage);
    std::vector<std::unique_ptr<Dataset>> parts;
    for (std::size_t i = 0; i < blend.parts.size(); ++i) parts.push_back(stage_part(blend, i));
    if (parts.size() == 1) return std::move(parts[0]);
    return std::make_unique<BlendedDataset>(std::move(parts), blend.sizes, stage.samples, kSplitNames[0],
                                            cache_folder(blend.list.prefixes[0]), log_, ranks_);
  }

  /// Logs a warning with the training datasets to which data.fim_rate does not apply. Throws BadInput if it applies to
  /// none.
  void check_fim() const {
    if (masked_prefixes_.empty()) return;
    const std::string names = join(masked_prefixes_, ", ");
    check_input(has_rearranged_, "data.fim_rate: has no effect, because all training datasets have a loss mask, which ",
                "would not fit rearranged text: ", names, "; set it to 0, or add a dataset without a loss mask");
    log_.warn(str("data.fim_rate: does not apply to datasets with a loss mask: ", names));
  }

  std::vector<std::unique_ptr<IndexedDataset>> take_sources() { return std::move(sources_); }
  std::vector<std::vector<i64>> take_stage_starts() { return std::move(stage_starts_); }

 private:
  static constexpr std::size_t kTrain = 0, kValid = 1;

  /// Sequences of a dataset whose text a run reads only once per epoch. Different spellings of a path are the same
  /// text.
  struct Text {
    std::string path;
    SequenceRange range;
    bool operator==(const Text& other) const {
      return path == other.path && range.begin == other.range.begin && range.end == other.range.end;
    }
  };
  /// Texts in the order of first use, with their positions.
  class TextPositions {
   public:
    void begin_stage(bool repeats_data) {
      for (auto& [text, position] : positions_) position.begin_stage(repeats_data);
    }
    StagePosition& of(const Text& text) {
      for (auto& [key, position] : positions_) {
        if (key == text) return position;
      }
      return positions_.emplace_back(text, StagePosition()).second;
    }
    std::vector<i64> furthest() const {
      std::vector<i64> tokens;
      for (const auto& [text, position] : positions_) tokens.push_back(position.furthest());
      return tokens;
    }

   private:
    std::vector<std::pair<Text, StagePosition>> positions_;
  };
  struct StageBlend {
    BlendList list;
    std::vector<Text> parts;
    BlendWeights sizes;              // weights that need not be normalized
    std::vector<TokenRange> tokens;  // tokens that each part provides
    i64 seq_length = 0;
  };

  /// Determines the tokens that a stage reads, and advances the positions of their texts.
  StageBlend read_stage(const StageText& stage) {
    const bool uses_all_text = stage.data.data_path.empty();
    const std::string key = uses_all_text ? "data.train_data_path" : "data.data_path";
    const std::vector<std::string>& entries = uses_all_text ? stage.data.train_data_path : stage.data.data_path;
    StageBlend blend{.list = non_empty_entries(entries, key, kTrain, uses_all_text),
                     .parts = {},
                     .sizes = {},
                     .tokens = {},
                     .seq_length = stage.seq_length};
    for (const std::string& prefix : blend.list.prefixes) {
      blend.parts.push_back(
          {std::filesystem::weakly_canonical(bin_path(prefix)), split_range(prefix, kTrain, uses_all_text)});
      positions_.of(blend.parts.back());
    }
    stage_starts_.push_back(positions_.furthest());
    if (stage.repeat_data) stage_starts_.back().push_back(-1);
    positions_.begin_stage(stage.repeat_data);
    set_sizes(blend);
    const std::vector<i64> samples = samples_by_part(blend, stage.samples);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      StagePosition& position = positions_.of(blend.parts[i]);
      blend.tokens.push_back({.first_token = position.next(), .samples = samples[i]});
      position.advance(samples[i] * stage.seq_length);
      if (!blend.list.has_weights() && samples.size() > 1) check_read_once(blend, i, key);
    }
    return blend;
  }

  /// Sets the sizes. Without weights, each dataset contributes in proportion to its unread text.
  void set_sizes(StageBlend& blend) {
    blend.sizes = blend.list.weights;
    if (blend.parts.size() == 1) blend.sizes = std::vector<double>{1};
    for (std::size_t i = blend.sizes.start.size(); i < blend.parts.size(); ++i) {
      const i64 unread = tokens_of(blend, i) - positions_.of(blend.parts[i]).next();
      check_input(unread > blend.seq_length, blend.list.prefixes[i], ": has ", std::max<i64>(unread, 0),
                  " tokens that earlier stages have not read, and one sample needs ", blend.seq_length + 1,
                  "; set a weight for each prefix to allow repetition, or remove the dataset from this stage");
      blend.sizes.start.push_back(static_cast<double>((unread - 1) / blend.seq_length));
    }
  }

  std::vector<i64> samples_by_part(const StageBlend& blend, i64 samples) {
    if (blend.parts.size() == 1) return {samples};
    return count_blend_samples(blend.sizes.normalized(), samples, cache_folder(blend.list.prefixes[0]), log_, ranks_);
  }

  void check_read_once(const StageBlend& blend, std::size_t i, const std::string& key) {
    const i64 tokens = tokens_of(blend, i), end = blend.tokens[i].end(blend.seq_length);
    check_input(end <= tokens, key, ": the stages up to this one read ", end, " tokens of ", blend.list.prefixes[i],
                ", which has ", tokens,
                ", and a blend without weights is read only once; set a weight for each prefix to allow repetition");
  }

  i64 tokens_of(const StageBlend& blend, std::size_t i) {
    return count_tokens(source(blend.list.prefixes[i]), blend.parts[i].range);
  }

  std::unique_ptr<Dataset> stage_part(const StageBlend& blend, std::size_t i) {
    const std::string& prefix = blend.list.prefixes[i];
    const TokenRange tokens = blend.tokens[i];
    const GptDatasetSpec spec{.range = blend.parts[i].range,
                              .split_name = kSplitNames[kTrain],
                              .seq_length = blend.seq_length,
                              .seed = seed_,
                              .num_samples = std::max<i64>(tokens.samples, 1),  // an unused dataset has one sample
                              .first_token = tokens.first_token,
                              .loss_mask = loss_mask(prefix)};
    auto dataset = std::make_unique<GptDataset>(source(prefix), spec, cache_folder(prefix), log_, ranks_);
    const auto per_epoch = static_cast<double>(dataset->plan().tokens_per_epoch);
    const auto epochs = [&](i64 token) { return fixed(static_cast<double>(token) / per_epoch, 2); };
    const i64 end = tokens.first_token + tokens.samples * blend.seq_length;
    log_.info(str("data: train of ", prefix, ": ", spec.range.size(), " documents, ", human_count(per_epoch),
                  " tokens, ", tokens.samples, " samples, epoch ", epochs(tokens.first_token), " to ", epochs(end)));
    return rearranged(std::move(dataset), prefix);
  }

  /// Returns the entries of a list that have text in this split.
  BlendList non_empty_entries(const std::vector<std::string>& entries, std::string_view key, std::size_t split,
                              bool uses_all_text) {
    const BlendList list = parse_blend_list(entries, key);
    if (uses_all_text) return list;
    if (!split_ranges(config_.split, 1000)[split]) {
      check_input(split != 0, "data.split = \"", config_.split, "\" leaves no text for training");
      return {};
    }
    return split == 0 ? list : drop_small_datasets(list, split);
  }

  /// Removes texts that are too small for this split and logs a warning for each. The default shares of validation and
  /// test are so small that a short text may have none, which should not prevent training on it.
  BlendList drop_small_datasets(const BlendList& list, std::size_t split) {
    BlendList large_enough;
    for (std::size_t i = 0; i < list.prefixes.size(); ++i) {
      const IndexedDataset& text = source(list.prefixes[i]);
      const SequenceRange range = split_ranges(config_.split, text.num_sequences())[split].value();
      const i64 tokens = count_tokens(text, range);
      if (tokens <= seq_length_) {
        log_.warn(str(list.prefixes[i], ": data.split = \"", config_.split, "\" gives the ", kSplitNames[split],
                      " split ", range.size(), " of ", text.num_sequences(), " documents with ", tokens,
                      " tokens, and one sample needs ", seq_length_ + 1,
                      ", so no samples are held out. Increase the share, or preprocess the text into more documents"));
        continue;
      }
      large_enough.prefixes.push_back(list.prefixes[i]);
      if (list.has_weights()) large_enough.weights.start.push_back(list.weights.start[i]);
      if (!list.weights.is_constant()) large_enough.weights.end.push_back(list.weights.end[i]);
    }
    // The remaining weights may all be 0 at the start or at the end. Evaluations use the mean in any case.
    const BlendWeights& left = large_enough.weights;
    const auto is_zero = [](double weight) { return weight == 0; };
    if (!left.is_constant() && (std::ranges::all_of(left.start, is_zero) || std::ranges::all_of(left.end, is_zero)))
      large_enough.weights = left.mean();
    return large_enough;
  }

  /// Warns if an evaluation reads the same samples repeatedly, which adds no information.
  void warn_about_repetition(const std::string& prefix, const GptDatasetSpec& spec, const EpochPlan& plan) const {
    const i64 requested = spec.num_samples.value_or(0), different = (plan.tokens_per_epoch - 1) / seq_length_;
    if (requested < 2 * different) return;
    log_.warn(str(prefix, ": the ", spec.split_name, " split has ", spec.range.size(), " documents, ",
                  plan.tokens_per_epoch, " tokens, ", different, " samples; every evaluation reads ", requested,
                  " samples of it, each ", requested / different,
                  " times. Lower training.eval_iters, increase the share in data.split, or add text"));
  }

  const IndexedDataset& source(const std::string& prefix) {
    for (const auto& source : sources_) {
      if (source->prefix() == prefix) return *source;
    }
    return *sources_.emplace_back(std::make_unique<IndexedDataset>(prefix, connections_));
  }

  Path cache_folder(const std::string& prefix) const {
    if (!config_.data_cache_path.empty()) return config_.data_cache_path;
    if (is_s3_path(prefix)) return read_node_cache_settings().folder / "indices";
    return Path(prefix).parent_path() / "cache";
  }

  SequenceRange split_range(const std::string& prefix, std::size_t split, bool uses_all_text) {
    const i64 sequences = source(prefix).num_sequences();
    return uses_all_text ? SequenceRange{0, sequences} : split_ranges(config_.split, sequences)[split].value();
  }

  std::unique_ptr<Dataset> part(const std::string& prefix, std::size_t split, bool uses_all_text,
                                std::optional<i64> samples) {
    const IndexedDataset& text = source(prefix);
    const SequenceRange range = split_range(prefix, split, uses_all_text);
    const GptDatasetSpec spec{.range = range,
                              .split_name = kSplitNames[split],
                              .seq_length = seq_length_,
                              .seed = seed_,
                              .num_samples = samples,
                              .loss_mask = loss_mask(prefix)};
    auto dataset = std::make_unique<GptDataset>(text, spec, cache_folder(prefix), log_, ranks_);
    const EpochPlan& plan = dataset->plan();
    log_.info(str("data: ", spec.split_name, " of ", prefix, ": ", range.size(), " documents, ",
                  human_count(static_cast<double>(plan.tokens_per_epoch)), " tokens, ", plan.epochs,
                  plan.epochs == 1 ? " epoch, " : " epochs, ", plan.samples, " samples"));
    if (split != kTrain) {
      warn_about_repetition(prefix, spec, plan);
      return dataset;
    }
    return rearranged(std::move(dataset), prefix);
  }

  /// Returns the loss mask of a dataset; null if it has none.
  const IndexedDataset* loss_mask(const std::string& prefix) {
    if (!has_loss_mask(prefix)) return nullptr;
    const IndexedDataset& mask = source(loss_mask_prefix(prefix).string());
    check_loss_mask(source(prefix), mask);
    return &mask;
  }

  /// Returns training samples with data.fim_rate applied, unless they have a loss mask, which would no longer fit. The
  /// choices differ between stages and between datasets of different sizes.
  std::unique_ptr<Dataset> rearranged(std::unique_ptr<Dataset> dataset, const std::string& prefix) {
    if (!fim_) return dataset;
    if (has_loss_mask(prefix)) {
      masked_prefixes_.push_back(prefix);
      return dataset;
    }
    has_rearranged_ = true;
    const u64 key = philox_key(static_cast<u64>(seed_), "fill in the middle", source(prefix).bin_bytes());
    return std::make_unique<FimDataset>(std::move(dataset), fim_, philox_key(key, "stage", stage_starts_.size()));
  }

  std::unique_ptr<Dataset> blend_by_weight(const BlendList& list, std::size_t split, bool uses_all_text,
                                           i64 num_samples) {
    // The samples of an evaluation have the mean of weights that change during training.
    const BlendWeights& given = list.weights;
    const BlendWeights weights =
        split == kTrain || given.is_constant() ? given.normalized() : given.normalized().mean();
    std::vector<i64> samples;
    i64 size = 0;
    for (const double weight : weights.start) {
      samples.push_back(blend_target_with_surplus(num_samples, weight));
      size += blend_target(num_samples, weight);
    }
    if (!weights.is_constant()) {
      size = num_samples;
      samples = count_blend_samples(weights, size, cache_folder(list.prefixes[0]), log_, ranks_);
    }
    std::vector<std::unique_ptr<Dataset>> parts;
    for (std::size_t i = 0; i < samples.size(); ++i)
      parts.push_back(part(list.prefixes[i], split, uses_all_text, std::max<i64>(samples[i], 1)));
    return std::make_unique<BlendedDataset>(std::move(parts), weights, size, kSplitNames[split],
                                            cache_folder(list.prefixes[0]), log_, ranks_);
  }

  /// Blends datasets in proportion to their size, using all of their samples unless `requested` limits them.
  std::unique_ptr<Dataset> blend_by_size(const BlendList& list, std::string_view key, std::size_t split,
                                         bool uses_all_text, std::optional<i64> requested) {
    std::vector<std::unique_ptr<Dataset>> parts;
    std::vector<double> sizes;
    i64 available = 0;
    for (const std::string& prefix : list.prefixes) {
      parts.push_back(part(prefix, split, uses_all_text, std::nullopt));
      sizes.push_back(static_cast<double>(parts.back()->size()));
      available += parts.back()->size();
    }
    const i64 num_samples = requested.value_or(available);
    check_input(num_samples <= available, key, ": ", num_samples, " ", kSplitNames[split],
                " samples are needed, but the datasets hold ", available,
                " and a blend without weights is read only once; set a weight for each prefix to allow repetition");
    return std::make_unique<BlendedDataset>(std::move(parts), sizes, num_samples, kSplitNames[split],
                                            cache_folder(list.prefixes[0]), log_, ranks_);
  }

  const DataConfig& config_;
  i64 seq_length_, seed_;
  const Log& log_;
  const IndexRanks& ranks_;
  std::shared_ptr<const FimTransform> fim_;  // null if data.fim_rate is 0
  bool has_rearranged_ = false;
  std::vector<std::string> masked_prefixes_;  // training datasets to which fim_ does not apply
  ObjectConnections connections_;             // of sources_
  std::vector<std::unique_ptr<IndexedDataset>> sources_;
  TextPositions positions_;  // after the stages read so far
  std::vector<std::vector<i64>> stage_starts_;
};

void check_held_out(const DataConfig& config) {
  const BlendList train = parse_blend_list(config.train_data_path, "data.train_data_path");
  const auto same_file = [](const std::string& a, const std::string& b) {
    std::error_code error;
    return a == b || (std::filesystem::equivalent(bin_path(a), bin_path(b), error) && !error);
  };
  const auto check = [&](const std::vector<std::string>& entries, std::string_view key) {
    if (entries.empty()) return;
    for (const std::string& held_out : parse_blend_list(entries, key).prefixes) {
      for (const std::string& trained : train.prefixes) {
        check_input(!same_file(trained, held_out), key, ": ", held_out,
                    " is also in data.train_data_path; held-out text must not be trained on");
      }
    }
  };
  check(config.valid_data_path, "data.valid_data_path");
  check(config.test_data_path, "data.test_data_path");
}

}  // namespace

std::array<std::optional<SequenceRange>, 3> split_ranges(const std::string& split_text, i64 num_sequences) {
  std::vector<double> shares = normalize_weights(parse_shares(split_text));
  std::array<std::optional<SequenceRange>, 3> ranges;
  double begin = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double end = begin + shares[i];
    const auto bound = [&](double x) {
      return static_cast<i64>(std::nearbyint(x * static_cast<double>(num_sequences)));
    };
    if (end > begin) ranges[i] = SequenceRange{bound(begin), bound(end)};
    begin = end;
  }
  return ranges;
}

std::vector<std::string> validation_set_names(const std::vector<std::string>& prefixes) {
  constexpr std::string_view kEnding = "_text_document";
  std::vector<std::string> names;
  for (const std::string& prefix : prefixes) {
    std::string name = Path(prefix).filename().string();
    if (name.ends_with(kEnding) && name.size() > kEnding.size()) name.resize(name.size() - kEnding.size());
    names.push_back(name);
  }
  const std::set<std::string> different(names.begin(), names.end());
  return different.size() == names.size() ? names : prefixes;
}

Datasets build_train_valid_test_datasets(const DataConfig& config, i64 seq_length, i64 seed,
                                         std::array<i64, 3> num_samples, const Log& log, const IndexRanks& ranks,
                                         std::span<const StageText> stages) {
  for (const std::string& conflict : config.conflicts()) fail(ExitCode::BadInput, conflict);
  check_input(config.has_data() && !config.mock_data,
              "data.data_path: is empty; set it to the prefix of a dataset made by preprocess");
  if (!config.train_data_path.empty()) check_held_out(config);

  const std::vector<std::string>* separate_paths[] = {&config.train_data_path, &config.valid_data_path,
                                                      &config.test_data_path};
  Datasets datasets;
  std::unique_ptr<Dataset>* outputs[] = {&datasets.train, nullptr, &datasets.test};
  Builder builder(config, seq_length, seed, log, ranks);
  for (std::size_t split = 0; split < 3; ++split) {
    if (num_samples[split] <= 0) continue;
    const bool uses_all_text = config.data_path.empty();
    if (uses_all_text && separate_paths[split]->empty()) continue;
    const std::string key = uses_all_text ? str("data.", kSplitNames[split], "_data_path") : "data.data_path";
    const std::vector<std::string>& entries = uses_all_text ? *separate_paths[split] : config.data_path;
    if (split == 0 && !stages.empty())
      datasets.train = builder.build_stage(stages);
    else if (outputs[split])
      *outputs[split] = builder.build(entries, key, split, uses_all_text, num_samples[split]);
    else
      datasets.validation = builder.build_validation(entries, key, uses_all_text, num_samples[split]);
  }
  builder.check_fim();
  datasets.sources = builder.take_sources();
  datasets.stage_starts = builder.take_stage_starts();
  return datasets;
}

}  // namespace mcpp

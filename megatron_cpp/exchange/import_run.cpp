#include "megatron_cpp/exchange/import_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/load/distributed_checkpoint.h"
#include "checkpoint/load/torch_files.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/exchange/megatron_args.h"
#include "megatron_cpp/exchange/megatron_files.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "optimizer/optimizer.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSecondMoment = "exp_avg_sq";
constexpr std::string_view kMoments[]{"exp_avg", kSecondMoment};

/// Files of a checkpoint and the configuration that they contain.
struct OpenedRun {
  std::unique_ptr<TensorFiles> files;
  std::optional<Config> config = {};
  std::optional<i64> iteration = {}, consumed_samples = {};
  std::optional<double> optimizer_steps = {};
};

/// Returns true for non-negative integers that a double represents exactly.
bool is_count(double value) {
  return value >= 0 && value < 0x1p53 && value == std::floor(value);
}

/// Converts a value with the key `name` of the files. Throws BadInput, naming the option that replaces it, unless it is
/// a count.
i64 to_count(std::optional<double> value, std::string_view source, std::string_view name, std::string_view option) {
  const std::string problem = value ? str("is ", *value, ", not a count") : "is not a number";
  check_input(value && is_count(*value), source, ": ", name, " ", problem, "; pass ", option);
  return static_cast<i64>(*value);
}

/// Returns the number in a value of a file; std::nullopt if the value is not a number.
std::optional<double> number_of(const TorchFile& file, const PickleValue& value, std::string_view name) {
  if (const auto tensor = file.tensor(value, name)) return tensor->number();
  if (value.is(PickleKind::Integer)) return static_cast<double>(value.integer);
  return value.is(PickleKind::Float) ? std::optional(value.number) : std::nullopt;
}

/// Adds the values that Megatron-LM stores besides tensors, unless the request replaces them.
void add_megatron_state(const TorchFile& file, const ImportRequest& request, OpenedRun& run) {
  const PickleValue& root = file.root();
  const PickleValue* iteration = root.find("iteration");
  if (iteration && !request.iteration && !request.weights_only)
    run.iteration = to_count(number_of(file, *iteration, "iteration"), file.source(), "iteration", "--iteration");
  const PickleValue* arguments = root.find("args");
  const PickleValue* samples = arguments ? arguments->find("consumed_train_samples") : nullptr;
  if (samples && !request.consumed_samples && !request.weights_only)
    run.consumed_samples = to_count(number_of(file, *samples, "consumed_train_samples"), file.source(),
                                    "args.consumed_train_samples", "--consumed_samples");
  if (arguments && request.config.empty()) run.config = config_of_megatron_args(*arguments, file.source());
  const PickleValue* optimizer = root.find("optimizer");
  // With experts, which have their own optimizer, the optimizers are a dict by number; all have had the same updates.
  if (optimizer && optimizer->is(PickleKind::Dict) && optimizer->items.size() > 1 &&
      optimizer->items[0]->is(PickleKind::Integer))
    optimizer = optimizer->items[1];
  const PickleValue* inner = optimizer ? optimizer->find("optimizer") : nullptr;
  if (inner) optimizer = inner;
  const PickleValue* state = optimizer ? optimizer->find("state") : nullptr;
  const PickleValue* step = state ? state->find("common_step") : nullptr;
  // The distributed optimizer stores it by group; groups without parameters have none.
  const PickleValue* groups = optimizer ? optimizer->find("param_groups") : nullptr;
  for (std::size_t i = 0; !step && groups && i < groups->items.size(); ++i) step = groups->items[i]->find("step");
  if (step) run.optimizer_steps = number_of(file, *step, "step");
}

/// Returns the files that pytorch_model.bin.index.json names.
std::vector<Path> indexed_files(const Path& index) {
  const Json parsed = parse_json(read_text_file(index), index.string());
  const JsonObject map = JsonObject(parsed, index.string()).object("weight_map");
  std::set<std::string> names;
  for (const auto& [name, value] : map.json().items()) names.insert(map.text(name));
  std::vector<Path> files;
  for (const std::string& name : names) {
    check_input(Path(name).filename() == name && name != "..", index.string(), ": '", name,
                "' is not the name of a file in this folder");
    files.push_back(index.parent_path() / name);
  }
  check_input(!files.empty(), index.string(), " names no files");
  return files;
}

/// Returns the folder of the newest checkpoint of a folder that Megatron-LM saves to, or the folder itself.
Path newest_of_megatron(const Path& folder) {
  const Path tracker = folder / "latest_checkpointed_iteration.txt";
  if (!fs::exists(tracker)) return folder;
  std::string text = read_text_file(tracker);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text == "release") return folder / text;
  const auto iteration = parse_number<i64>(text);
  check_input(iteration.has_value() && *iteration >= 0, tracker.string(), ": '", text, "' is not an iteration");
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "iter_%07lld", static_cast<long long>(*iteration));
  return folder / name.data();
}

OpenedRun open_run(const ImportRequest& request) {
  check_input(fs::exists(request.path), request.path.string(), ": no such file or folder");
  OpenedRun run;
  if (!fs::is_directory(request.path)) {
    run.files = std::make_unique<TorchFiles>(std::vector{request.path}, request.weights_only);
    return run;
  }
  const Path folder = newest_of_megatron(request.path);
  if (DistributedCheckpoint::is_in(folder)) {
    run.files = std::make_unique<DistributedCheckpoint>(folder);
    const Path common = folder / "common.pt";
    if (!fs::exists(common)) return run;
    const MappedFile content(common);
    add_megatron_state(TorchFile(content.bytes(), common.string()), request, run);
  } else if (MegatronRanks::is_in(folder)) {
    auto ranks = std::make_unique<MegatronRanks>(folder);
    add_megatron_state(ranks->first_file(), request, run);
    run.files = std::move(ranks);
  } else if (fs::exists(folder / "pytorch_model.bin")) {
    run.files = std::make_unique<TorchFiles>(std::vector{folder / "pytorch_model.bin"}, request.weights_only);
  } else if (const Path index = folder / "pytorch_model.bin.index.json"; fs::exists(index)) {
    run.files = std::make_unique<TorchFiles>(indexed_files(index), request.weights_only);
  } else {
    fail(ExitCode::BadInput, folder.string(),
         ": has none of .metadata (distributed checkpoint of PyTorch or Megatron Core), mp_rank_00 (Megatron Core) and "
         "pytorch_model.bin; safetensors are read by `megatron_cpp checkpoint import-hf`");
  }
  return run;
}

/// Configuration of an imported run, and the Hugging Face family whose names the weights have if they have no others.
struct ResolvedConfig {
  Config config;
  const Family* family = nullptr;
  bool states_precision = true;
};

ResolvedConfig resolve_config(const ImportRequest& request, OpenedRun& run) {
  Path path = request.config;
  if (path.empty() && fs::is_directory(request.path) && fs::exists(request.path / "config.json"))
    path = request.path / "config.json";
  if (path.empty()) {
    check_input(run.config.has_value(), request.path.string(),
                ": does not state the model; pass --config, the configuration of the run that continues (TOML) or the "
                "config.json of a Hugging Face model");
    return {.config = *run.config, .family = nullptr};
  }
  if (path.extension() != ".json") {
    // The run continues in the folder of the new checkpoint, so that its file need not name one.
    const std::vector<std::string> overrides{"--checkpoint.save=" + request.save.string()};
    ResolvedConfig resolved{.config = load_config(path, overrides), .family = nullptr};
    ModelConfig& model = resolved.config.model;
    if (model.vocab_size == 0) model.vocab_size = Tokenizer(resolved.config.data.tokenizer_model).vocab_size();
    return resolved;
  }
  const std::string text = read_text_file(path);
  ResolvedConfig resolved;
  resolved.config.model = parse_huggingface_config(text, path.string(), 0);
  resolved.config.training.global_batch_size = resolved.config.training.train_iters = 1;
  resolved.family = &family_of_config(text, path.string());
  resolved.states_precision = false;
  return resolved;
}

/// Throws if a value is negative. `values` is fp32 on the CPU.
void check_not_negative(const Tensor& values, const std::string& what) {
  const std::span<const float> all(values.data<float>(), static_cast<std::size_t>(values.numel()));
  check_input(std::ranges::all_of(all, [](float value) { return value >= 0; }), what, ": has negative values");
}

std::string state_name(const std::string& tensor, std::string_view state) {
  return str("optimizer.state.", tensor, ".", state);
}

/// Source of our shards, each of which is assembled from the files when it is read.
class ImportedShards final : public ShardSource {
 public:
  ImportedShards(std::unique_ptr<TensorFiles> files, std::vector<WeightRule> rules, Device& device)
      : files_(std::move(files)), rules_(std::move(rules)), device_(device) {}

  TensorFiles& files() { return *files_; }
  const std::vector<WeightRule>& rules() const { return rules_; }

  /// Adds shards that are assembled by the rules from tensors named `theirs(name)`.
  void add(const WeightRule& rule, std::string name, DType dtype, std::string_view state) {
    ShardSpec spec;
    static_cast<Region&>(spec) = full_region(full_box(rule.shape));
    spec.name = std::move(name);
    spec.dtype = dtype;
    specs_.push_back(std::move(spec));
    sources_.push_back({&rule, std::string(state)});
  }

  std::span<const ShardSpec> shards() const override { return specs_; }

  Tensor data(std::size_t index) override {
    const auto& [rule, state] = sources_[index];
    std::vector<Tensor> foreign;
    for (const ForeignTensor& tensor : rule->foreign) {
      const std::string name = state.empty() ? tensor.name : state_name(tensor.name, state);
      // Rows of the padded vocabulary after those of the tokens are not read.
      const Box part{files_->at(name).shape, Shape(tensor.shape.size(), 0), tensor.shape};
      foreign.push_back(files_->read(name, part, specs_[index].dtype, device_));
      check_finite(foreign.back(), str(files_->source(), ": ", name));
      if (state == kSecondMoment) check_not_negative(foreign.back(), str(files_->source(), ": ", name));
    }
    return gather_rows(*rule, foreign);
  }

 private:
  struct Source {
    const WeightRule* rule;
    std::string state;
  };
  std::unique_ptr<TensorFiles> files_;
  std::vector<WeightRule> rules_;
  Device& device_;
  std::vector<ShardSpec> specs_;
  std::vector<Source> sources_;
};

/// Throws unless the file has this tensor with the shape that the configuration implies. A vocabulary may be padded.
void check_tensor(const TensorFiles& files, const std::string& name, const ForeignTensor& tensor, bool is_vocabulary) {
  const Shape& stored = files.at(name).shape;
  Shape unpadded = stored;
  if (is_vocabulary && !stored.empty()) unpadded[0] = std::min(stored[0], tensor.shape[0]);
  check_input(unpadded == tensor.shape, files.source(), ": ", name, " has shape ", stored,
              ", but the configuration requires ", tensor.shape);
}

bool is_vocabulary(const WeightRule& rule) {
  return rule.name == "embedding.word_embeddings.weight" || rule.name == "output_layer.weight";
}

/// Returns the number of rows of the vocabulary's tensors that belong to no token of the model.
i64 padding_rows(const TensorFiles& files, const std::vector<WeightRule>& rules) {
  i64 rows = 0;
  for (const WeightRule& rule : rules)
    for (const ForeignTensor& tensor : rule.foreign)
      if (is_vocabulary(rule)) rows = std::max(rows, files.at(tensor.name).shape[0] - tensor.shape[0]);
  return rows;
}

/// Returns the type of the weights if all have the same 16-bit type, otherwise fp32.
DType type_of_weights(const TensorFiles& files, const std::vector<WeightRule>& rules) {
  std::set<SafeType> types;
  for (const WeightRule& rule : rules)
    for (const ForeignTensor& tensor : rule.foreign)
      if (!rule.dtype) types.insert(files.at(tensor.name).type);
  if (types == std::set{SafeType::BF16}) return DType::BF16;
  return types == std::set{SafeType::F16} ? DType::F16 : DType::F32;
}

/// Returns true if a tensor is the output matrix and equals the word embeddings.
bool is_tied_copy(TensorFiles& files, const FileTensor& tensor, const WeightRule& embeddings, std::string_view output,
                  Device& device) {
  const std::string& name = embeddings.foreign[0].name;
  if (tensor.name != str(output, ".weight") || files.at(name).shape != tensor.shape) return false;
  const Tensor a = files.read_all(tensor.name, DType::F32, device), b = files.read_all(name, DType::F32, device);
  return std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.bytes())) == 0;
}

/// Returns the tensors that are not weights of the model, except those of the optimizer. Throws if one of them is a
/// weight.
std::vector<std::string> unused_tensors(TensorFiles& files, const std::vector<WeightRule>& rules,
                                        std::string_view output, Device& device) {
  std::set<std::string, std::less<>> used;
  for (const WeightRule& rule : rules)
    for (const ForeignTensor& tensor : rule.foreign) used.insert(tensor.name);
  std::vector<std::string> unused;
  for (const FileTensor& tensor : files.tensors()) {
    if (used.contains(tensor.name) || tensor.name.starts_with("optimizer.")) continue;
    if (is_buffer(tensor.name) || is_tied_copy(files, tensor, rules[0], output, device)) continue;
    const bool is_weight = tensor.name.ends_with(".weight") || tensor.name.ends_with(".bias");
    check_input(!is_weight || tensor.type == SafeType::Other, files.source(), ": the tensor ", tensor.name,
                " has no counterpart in the model of the configuration");
    unused.push_back(tensor.name);
  }
  return unused;
}

/// Returns false for the expert bias of routers, which no gradient updates.
bool has_states(const WeightRule& rule) {
  return !rule.dtype;
}

/// Returns the number of updates of the optimizer. Throws unless the state is complete and the same for all parameters.
i64 check_optimizer(TensorFiles& files, const std::vector<WeightRule>& rules, std::optional<double> steps) {
  for (const WeightRule& rule : rules) {
    if (!has_states(rule)) continue;
    for (const ForeignTensor& tensor : rule.foreign) {
      for (const std::string_view state : kMoments)
        check_tensor(files, state_name(tensor.name, state), tensor, is_vocabulary(rule));
      const std::optional<double> own = files.number(state_name(tensor.name, "step"));
      if (own && !steps) steps = own;
      check_input(!own || own == steps, files.source(), ": ", tensor.name, " has had ", own.value_or(0),
                  " updates, but other tensors ", steps.value_or(0), "; this program counts updates of all together");
    }
  }
  check_input(steps && is_count(*steps), files.source(),
              ": does not state the number of updates of the optimizer (step)");
  return static_cast<i64>(*steps);
}

/// Returns true if the files have a state of AdamW of the first weight.
bool has_moments(const TensorFiles& files, const std::vector<WeightRule>& rules) {
  return std::ranges::any_of(kMoments, [&](std::string_view state) {
    return files.find(state_name(rules[0].foreign[0].name, state)) != nullptr;
  });
}

void add_optimizer(ImportedShards& shards, DType dtype) {
  for (const WeightRule& rule : shards.rules()) {
    if (!has_states(rule)) continue;
    for (const std::string_view state : kMoments)
      shards.add(rule, optimizer_tensor(state, rule.name), DType::F32, state);
    if (!is_low_precision(dtype)) continue;
    const bool has_master = std::ranges::all_of(rule.foreign, [&](const ForeignTensor& tensor) {
      return shards.files().find(state_name(tensor.name, kMasterState)) != nullptr;
    });
    for (std::size_t i = 0; has_master && i < rule.foreign.size(); ++i)
      check_tensor(shards.files(), state_name(rule.foreign[i].name, kMasterState), rule.foreign[i],
                   is_vocabulary(rule));
    shards.add(rule, optimizer_tensor(kMasterState, rule.name), DType::F32, has_master ? kMasterState : "");
  }
}

/// Returns the iteration that the files state; std::nullopt if they state none.
std::optional<i64> find_iteration(TensorFiles& files) {
  for (const std::string_view name : {"train_state.step", "step", "iteration", "iter"})
    if (files.contains(name)) return to_count(files.number(name), files.source(), name, "--iteration");
  return std::nullopt;
}

TrainingProgress progress_of(const ImportRequest& request, const OpenedRun& opened, TensorFiles& files,
                             const Config& config, i64 steps) {
  std::optional<i64> iteration = request.iteration ? request.iteration : opened.iteration;
  if (!iteration) iteration = find_iteration(files);
  TrainingProgress progress;
  progress.iteration = iteration.value_or(steps);
  check_input(progress.iteration >= steps, files.source(), ": has ", progress.iteration, " iterations, but ", steps,
              " updates of the optimizer; pass --iteration");
  progress.skipped_iterations = progress.iteration - steps;
  i64 samples = 0;
  check_input(!__builtin_mul_overflow(progress.iteration, config.training.global_batch_size, &samples), files.source(),
              ": iteration ", progress.iteration, " is too large");
  progress.consumed_samples = request.consumed_samples.value_or(opened.consumed_samples.value_or(samples));
  progress.trained_samples = progress.consumed_samples;
  check_input(
      progress.consumed_samples >= 0 &&
          !__builtin_mul_overflow(progress.consumed_samples, config.model.seq_length, &progress.consumed_tokens),
      files.source(), ": ", progress.consumed_samples,
      " consumed samples are negative or too many; pass --consumed_samples");
  return progress;
}

WeightNames names_of(WeightFormat format, const ResolvedConfig& resolved, const TensorFiles& files) {
  const ModelConfig& model = resolved.config.model;
  if (format == WeightFormat::Torchtitan) return torchtitan_names();
  if (format == WeightFormat::Megatron) return megatron_names(model, files);
  const Family& family = resolved.family ? *resolved.family : exporting_family(model);
  const bool is_bare_model = family.family == HuggingfaceFamily::Gpt2 && files.find("wte.weight") != nullptr;
  return weight_names(family, is_bare_model ? "" : family.base);
}

}  // namespace

ImportedRun import_run(const ImportRequest& request, Device& device) {
  OpenedRun opened = open_run(request);
  ResolvedConfig resolved = resolve_config(request, opened);
  ImportedRun run;
  run.format = detect_format(*opened.files);
  if (run.format == WeightFormat::Megatron) opened.files = std::make_unique<MegatronFiles>(std::move(opened.files));
  TensorFiles& files = *opened.files;
  const WeightNames names = names_of(run.format, resolved, files);
  std::vector<WeightRule> rules = weight_map(resolved.config.model, names, [&](const WeightRule& rule) {
    for (const ForeignTensor& tensor : rule.foreign) check_tensor(files, tensor.name, tensor, is_vocabulary(rule));
  });
  run.padding_rows = padding_rows(files, rules);
  run.unused = unused_tensors(files, rules, names.output, device);
  run.has_optimizer = !request.weights_only && has_moments(files, rules);
  if (!resolved.states_precision) resolved.config.training.precision = precision_of(type_of_weights(files, rules));
  if (request.dtype) resolved.config.training.precision = precision_of(*request.dtype);
  run.config = std::move(resolved.config);
  if (run.has_optimizer) {
    check_input(run.config.optimizer.optimizer == OptimizerKind::Adam,
                "optimizer.optimizer: the checkpoint has the state of AdamW; import the weights with --weights_only");
    run.optimizer_steps = check_optimizer(files, rules, opened.optimizer_steps);
    run.progress = progress_of(request, opened, files, run.config, run.optimizer_steps);
  }
  auto shards = std::make_unique<ImportedShards>(std::move(opened.files), std::move(rules), device);
  const DType dtype = dtype_of(run.config.training.precision);
  for (const WeightRule& rule : shards->rules())
    shards->add(rule, model_tensor(rule.name), rule.dtype.value_or(dtype), "");
  if (run.has_optimizer) add_optimizer(*shards, dtype);
  run.shards = std::move(shards);
  return run;
}

}  // namespace mcpp

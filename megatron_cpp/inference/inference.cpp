#include "megatron_cpp/inference/inference.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/memory_check.h"
#include "megatron_cpp/setup/model_provider.h"

namespace mcpp {
namespace {

Config config_of(const CheckpointReader& reader, const InferenceOptions& options, int ranks) {
  Config config = parse_stored_config(reader.state().config, reader.directory().string() + "/config");
  const auto& names = EnumNames<Precision>::value;
  const auto named = std::ranges::find(names, options.precision);
  check_input(options.precision.empty() || named != names.end(), "--precision: \"", options.precision,
              "\": must be one of fp32, bf16, fp16");
  if (!options.precision.empty()) config.training.precision = static_cast<Precision>(named - names.begin());
  // Low precision is used for training only. Scales may depend on all tokens of a pass, but no result may depend on
  // other texts in the batch.
  config.training.fp8 = Fp8::None;
  config.training.low_precision.clear();
  config.training.moe_fp8_dispatch = false;
  config.model.remove_mtp();
  config.device = {};
  config.device.device = options.device;
  config.device.num_threads = options.num_threads;
  config.parallel = options.parallel;
  // No step is taken: any batch that these ranks can share suffices.
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = ranks;
  config.training.step_batch_size_schedule = {};
  return config;
}

/// Allocates parameters without gradients, each as a separate tensor.
void allocate_weights(GPTModel& model) {
  const ModelContext& context = model.context();
  model.visit([&](Param& param, int) {
    param.value = Tensor::empty(param.box.shape, context.dtype, context.device, MemoryClass::Params);
  });
}

}  // namespace

InferenceModel::InferenceModel(const InferenceOptions& options, const World& world, const Log& log)
    : options_(options), world_(world) {
  checkpoint_ =
      use_checkpoint(options.load, world.ranks, log, [this](CheckpointReader& reader) { return make_model(reader); });
}

std::optional<Damage> InferenceModel::make_model(CheckpointReader& reader) {
  model_ = nullptr;
  config_ = config_of(reader, options_, world_.ranks.size());
  tokenizer_checksum_ = reader.state().tokenizer_checksum;
  special_tokens_ = read_special_tokens(reader.state(), reader.directory().string());
  session_ = std::make_unique<Session>(initialize(config_, world_));
  check_weights_memory(config_, world_.ranks, str("the model ", reader.directory().string()));
  const auto stage = static_cast<std::size_t>(session_->parallel.coordinates.pp);
  model_ = std::make_unique<GPTModel>(model_provider(config_, *session_),
                                      split_stages(config_.parallel, config_.model.num_layers).at(stage),
                                      /*embedding_stage=*/nullptr);
  allocate_weights(*model_);
  return load_weights(reader, *model_, {world_.ranks, world_.ranks_of_node()}, options_.weights);
}

Path InferenceModel::tokenizer_path() const {
  if (!options_.tokenizer_model.empty()) return options_.tokenizer_model;
  return tokenizer_of(checkpoint_, config_);
}

std::string InferenceModel::tokenizer_checksum() const {
  if (!tokenizer_checksum_.empty()) return tokenizer_checksum_;
  const Path path = tokenizer_path();
  return path.empty() ? "" : Tokenizer(path).checksum();
}

Tokenizer InferenceModel::tokenizer() const {
  const Path path = tokenizer_path();
  check_input(!path.empty(), "the checkpoint has no tokenizer next to it; pass --tokenizer_model");
  return open_tokenizer(path, tokenizer_checksum_, config_.model);
}

nlohmann::json parse_json_line(std::string_view line) {
  nlohmann::json object;
  try {
    object = Json::parse(line, UniqueKeys());
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::BadInput, "malformed JSON: ", error.what());
  }
  check_input(object.is_object(), "not a JSON object; each line must be one");
  return object;
}

std::string text_member(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  check_input(it != object.end(), "has no key \"", key, "\"");
  check_input(it->is_string(), "\"", key, "\" is not a string");
  return it->get<std::string>();
}

}  // namespace mcpp

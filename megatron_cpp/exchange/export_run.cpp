#include "megatron_cpp/exchange/export_run.h"

#include "base/check.h"
#include "checkpoint/save/distributed_writer.h"
#include "megatron_cpp/config/stages.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/training_schedule.h"
#include "optimizer/optimizer.h"

namespace mcpp {
namespace {

constexpr const char* kOptimizer = "optimizer";

/// Learning rate and weight decay of the next step, and the learning rate that the schedule starts from.
struct Rates {
  double lr = 0, initial_lr = 0, weight_decay = 0;
};

class Exporter {
 public:
  Exporter(const Path& folder, const Config& config, CheckpointReader& checkpoint)
      : config_(config), checkpoint_(checkpoint), writer_(folder) {}

  /// Writes the weights, in fp32 if they have master weights and the state of the optimizer is written, too.
  void write_weights(const std::vector<ForeignParts>& tensors, const ExportRequest& request, bool has_optimizer) {
    const Manifest& manifest = checkpoint_.manifest();
    for (const ForeignParts& tensor : tensors) {
      write({tensor.tensor.name}, tensor, [&](const std::string& name) {
        std::string master = optimizer_tensor(kMasterState, name);
        return has_optimizer && manifest.find(master) ? master : weight_tensor(manifest, request.weights, name);
      });
    }
  }

  void write_optimizer(const std::vector<ForeignParts>& tensors, i64 steps, const Rates& rates) {
    for (const ForeignParts& tensor : tensors) {
      const std::string& name = tensor.tensor.name;
      for (const char* state : {"exp_avg", "exp_avg_sq"})
        write({kOptimizer, str("state.", name, ".", state)}, tensor,
              [&](const std::string& ours) { return optimizer_tensor(state, ours); });
      write_scalar({kOptimizer, str("state.", name, ".step")}, static_cast<float>(steps));
      write_group(str("param_groups.", name, "."), *tensor.parts[0].rule, rates);
    }
  }

  void write_progress(const RunState& state) {
    write_scalar({"train_state", "step"}, static_cast<i32>(state.iteration));
    write_scalar({"train_state", "ntokens_seen"}, state.consumed_tokens);
  }

  void finish() { writer_.finish(); }

 private:
  /// Assembles a tensor from tensors of the checkpoint: `source` returns the name of the tensor of a parameter.
  template <class Source>
  void write(const std::vector<std::string>& path, const ForeignParts& tensor, const Source& source) {
    const auto read = [&](const WeightRule& rule) {
      const std::string name = source(rule.name);
      const DType stored = tensor_entry(checkpoint_.manifest(), name, checkpoint_.directory()).dtype;
      NamedShard ours(
          name, {rule.shape, Shape(rule.shape.size(), 0), rule.shape},
          Tensor::empty(rule.shape, is_model_tensor(name) ? stored : DType::F32, device_, MemoryClass::Other));
      checkpoint_.read(ours, Conversion::Convert);
      check_finite(ours.data, str(checkpoint_.directory().string(), ": ", name));
      return ours.data;
    };
    writer_.write(path, scatter_rows(tensor, read));
  }

  template <class T>
  void write_scalar(const std::vector<std::string>& path, T value) {
    Tensor scalar = Tensor::empty({}, dtype_for<T>(), device_, MemoryClass::Other);
    *scalar.data<T>() = value;
    writer_.write(path, scalar);
  }
  template <class T>
  static constexpr DType dtype_for() {
    return std::is_same_v<T, float> ? DType::F32 : std::is_same_v<T, i32> ? DType::I32 : DType::I64;
  }

  /// Writes the settings of our parameter as torch.optim.AdamW names them, including those of optimizer.param_group.
  void write_group(const std::string& prefix, const WeightRule& rule, const Rates& rates) {
    const ParamGroup group = group_of(Param(rule.name, rule.shape, Init::Normal), config_.optimizer);
    const auto write = [&](const char* key, const PickleWriter& value) {
      writer_.write({kOptimizer, prefix + key}, value);
    };
    write("lr", PickleWriter().number(rates.lr * group.lr_mult));
    write("initial_lr", PickleWriter().number(rates.initial_lr * group.lr_mult));  // read by torch.optim.lr_scheduler
    write("betas", PickleWriter().begin_tuple().number(group.adam_beta1).number(group.adam_beta2).end_tuple());
    write("eps", PickleWriter().number(group.adam_eps));
    write("weight_decay", PickleWriter().number(rates.weight_decay * group.wd_mult));
    for (const char* key : {"amsgrad", "maximize", "capturable", "differentiable"})
      write(key, PickleWriter().boolean(false));
    for (const char* key : {"foreach", "fused"}) write(key, PickleWriter().none());
    write("decoupled_weight_decay", PickleWriter().boolean(true));
  }

  const Config& config_;
  CheckpointReader& checkpoint_;
  CpuDevice device_;
  DistributedWriter writer_;
};

/// Throws BadInput, naming the keys, unless torchtitan's Llama computes what the model computes.
void check_torchtitan_model(const ModelConfig& model, const std::string& checkpoint) {
  std::vector<std::string> keys = unsupported_keys(model, family_row(HuggingfaceFamily::Llama));
  const auto require = [&](bool is_supported, const char* key) {
    if (!is_supported) keys.emplace_back(key);
  };
  if (keys.empty()) {  // Llama with options of Hugging Face that torchtitan lacks
    const RopeScalingType scaling = model.rope_scaling.type;
    require(!model.qkv_bias(), model.add_bias_linear ? "model.add_bias_linear" : "model.add_qkv_bias");
    require(model.add_bias_linear || !model.mlp_bias(), "model.add_mlp_bias");
    require(model.untie_embeddings_and_output_weights, "model.untie_embeddings_and_output_weights");
    require(model.head_dim() * model.num_attention_heads.first() == model.hidden_size, "model.kv_channels");
    require(scaling == RopeScalingType::None || scaling == RopeScalingType::Llama3, "model.rope_scaling_type");
  }
  check_input(keys.empty(), checkpoint, ": torchtitan's Llama requires different values of ", join(keys, ", "),
              "; --names=huggingface exports other models");
}

/// Returns the configuration of the stage that the next step of the run belongs to.
Config current_stage(const Config& config, i64 iteration) {
  std::vector<Config> stages = training_configs(config);
  return std::move(stages[stage_at(stages, iteration)]);
}

}  // namespace

void export_distributed(const Path& folder, const Config& run_config, CheckpointReader& checkpoint,
                        const ExportRequest& request) {
  MCPP_CHECK(request.format != WeightFormat::Megatron);
  check_has_weights(checkpoint, request.weights);
  check_input(request.weights == WeightSource::Model || request.weights_only,
              "--weights: the state of AdamW does not belong to averaged weights; add --weights_only");
  const Config config = current_stage(run_config, checkpoint.state().iteration);
  const std::string source = checkpoint.directory().string();
  check_input(!config.model.mup.is_used, source,
              ": model.use_mup: the format has no factors for logits and attention scores; a model with muP cannot be "
              "exported");
  if (request.format == WeightFormat::Torchtitan) check_torchtitan_model(config.model, source);
  const Family* family = request.format == WeightFormat::Huggingface ? &exporting_family(config.model) : nullptr;
  const std::vector<WeightRule> rules =
      weight_map(config.model, family ? weight_names(*family, family->base) : torchtitan_names());
  const std::vector<ForeignParts> tensors = foreign_tensors(rules);
  const std::optional<i64> steps = request.weights_only ? std::nullopt : optimizer_steps_of(checkpoint.state());
  check_input(!steps || config.optimizer.optimizer == OptimizerKind::Adam, source,
              ": has the state of an optimizer other than AdamW, which cannot be exported; use --weights_only");
  Exporter exporter(folder, config, checkpoint);
  exporter.write_weights(tensors, request, steps.has_value());
  if (steps) {
    const TrainingSchedule schedule(config);
    const TrainingProgress progress = saved_counters(checkpoint);
    const Rates rates{.lr = schedule.lr(progress),
                      .initial_lr = config.optimizer.lr,
                      .weight_decay = schedule.weight_decay(progress)};
    exporter.write_optimizer(tensors, *steps, rates);
    exporter.write_progress(checkpoint.state());
  }
  exporter.finish();
}

}  // namespace mcpp

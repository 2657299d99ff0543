#include "megatron_cpp/exchange/export_run.h"

#include "base/check.h"
#include "checkpoint/save/distributed_writer.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "optimizer/optimizer.h"

namespace mcpp {
namespace {

constexpr const char* kOptimizer = "optimizer";

class Exporter {
 public:
  Exporter(const Path& folder, const Config& config, CheckpointReader& checkpoint, bool has_optimizer)
      : config_(config), checkpoint_(checkpoint), has_optimizer_(has_optimizer), writer_(folder) {}

  void write_weights(const std::vector<ForeignParts>& tensors) {
    for (const ForeignParts& tensor : tensors) {
      const std::string& name = tensor.parts[0].rule->name;
      const std::string master = optimizer_tensor(kMasterState, name);
      const bool has_master = has_optimizer_ && checkpoint_.manifest().find(master) != nullptr;
      write({tensor.tensor.name}, tensor, has_master ? kMasterState : "");
    }
  }

  void write_optimizer(const std::vector<ForeignParts>& tensors, i64 steps) {
    for (const ForeignParts& tensor : tensors) {
      const std::string& name = tensor.tensor.name;
      for (const char* state : {"exp_avg", "exp_avg_sq"})
        write({kOptimizer, str("state.", name, ".", state)}, tensor, state);
      write_scalar({kOptimizer, str("state.", name, ".step")}, static_cast<float>(steps));
      write_group(str("param_groups.", name, "."), *tensor.parts[0].rule);
    }
  }

  void write_progress(const RunState& state) {
    write_scalar({"train_state", "step"}, static_cast<i32>(state.iteration));
    write_scalar({"train_state", "ntokens_seen"}, state.consumed_tokens);
  }

  void finish() { writer_.finish(); }

 private:
  /// Assembles a tensor from our weights, or from one of their states.
  void write(const std::vector<std::string>& path, const ForeignParts& tensor, std::string_view state) {
    const auto read = [&](const WeightRule& rule) {
      const std::string name = state.empty() ? model_tensor(rule.name) : optimizer_tensor(state, rule.name);
      const DType stored = tensor_entry(checkpoint_.manifest(), name, checkpoint_.directory()).dtype;
      NamedShard ours(name, {rule.shape, Shape(rule.shape.size(), 0), rule.shape},
                      Tensor::empty(rule.shape, state.empty() ? stored : DType::F32, device_, MemoryClass::Other));
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
  void write_group(const std::string& prefix, const WeightRule& rule) {
    const OptimizerConfig& optimizer = config_.optimizer;
    const ParamGroup group = group_of(Param(rule.name, rule.shape, Init::Normal), optimizer);
    const auto write = [&](const char* key, const PickleWriter& value) {
      writer_.write({kOptimizer, prefix + key}, value);
    };
    write("lr", PickleWriter().number(optimizer.lr * group.lr_mult));
    write("betas", PickleWriter().begin_tuple().number(group.adam_beta1).number(group.adam_beta2).end_tuple());
    write("eps", PickleWriter().number(group.adam_eps));
    write("weight_decay", PickleWriter().number(optimizer.weight_decay * group.wd_mult));
    for (const char* key : {"amsgrad", "maximize", "capturable", "differentiable"})
      write(key, PickleWriter().boolean(false));
    for (const char* key : {"foreach", "fused"}) write(key, PickleWriter().none());
    write("decoupled_weight_decay", PickleWriter().boolean(true));
  }

  const Config& config_;
  CheckpointReader& checkpoint_;
  bool has_optimizer_;
  CpuDevice device_;
  DistributedWriter writer_;
};

}  // namespace

void export_distributed(const Path& folder, const Config& config, CheckpointReader& checkpoint,
                        const ExportRequest& request) {
  MCPP_CHECK(request.format != WeightFormat::Megatron);
  check_input(!config.model.mup.is_used, checkpoint.directory().string(),
              ": model.use_mup: the format has no factors for logits and attention scores; a model with muP cannot be "
              "exported");
  const Family* family = request.format == WeightFormat::Huggingface ? &exporting_family(config.model) : nullptr;
  const std::vector<WeightRule> rules =
      weight_map(config.model, family ? weight_names(*family, family->base) : torchtitan_names());
  const std::vector<ForeignParts> tensors = foreign_tensors(rules);
  const std::optional<i64> steps = request.weights_only ? std::nullopt : optimizer_steps_of(checkpoint.state());
  check_input(!steps || config.optimizer.optimizer == OptimizerKind::Adam, checkpoint.directory().string(),
              ": has the state of an optimizer other than AdamW, which cannot be exported; use --weights_only");
  Exporter exporter(folder, config, checkpoint, steps.has_value());
  exporter.write_weights(tensors);
  if (steps) {
    exporter.write_optimizer(tensors, *steps);
    exporter.write_progress(checkpoint.state());
  }
  exporter.finish();
}

}  // namespace mcpp

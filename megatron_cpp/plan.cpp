#include "megatron_cpp/plan.h"

#include "megatron_cpp/model_provider.h"
#include "model/flops.h"
#include "model/memory.h"

namespace mcpp {
namespace {

void add_line(std::string& text, const std::string& name, const std::string& value) {
  std::string line = "  " + name;
  line.resize(std::max<std::size_t>(24, line.size() + 2), ' ');
  text += line + value + "\n";
}

std::string count(i64 n) {
  return human_count(static_cast<double>(n));
}

std::string parameters(const ModelConfig& model) {
  const ParameterCounts counts = count_parameters(model);
  std::string text = str("parameters: ", count(counts.total()), " (", counts.total(), ")\n");
  add_line(text, "word embeddings", count(counts.word_embeddings));
  if (counts.position_embeddings > 0) add_line(text, "position embeddings", count(counts.position_embeddings));
  add_line(text, "attention", count(counts.attention));
  add_line(text, "mlp", count(counts.mlp));
  add_line(text, "norms", count(counts.norms));
  if (counts.output > 0) add_line(text, "output layer", count(counts.output));
  return text;
}

std::string memory(const Config& config) {
  const MemoryEstimate estimate =
      estimate_memory(config.model, dtype_of(config.training.precision), recompute_of(config.training),
                      config.training.micro_batch_size, config.optimizer.optimizer == OptimizerKind::Adam ? 2 : 1);
  std::string text = str("memory: ", human_bytes(estimate.total()), " estimated\n");
  add_line(text, "parameters", human_bytes(estimate.params));
  add_line(text, "gradients", human_bytes(estimate.grads));
  add_line(text, "optimizer state", human_bytes(estimate.optimizer_state));
  add_line(text, "activations", human_bytes(estimate.activations));
  return text;
}

std::string schedule(const Config& config) {
  const i64 iterations = config.total_iterations(), samples = config.total_samples();
  const double tokens = static_cast<double>(samples) * static_cast<double>(config.model.seq_length);
  std::string text = "run:\n";
  add_line(text, "iterations", str(iterations));
  add_line(text, "samples", str(samples, " of ", config.model.seq_length, " tokens: ", human_count(tokens), " tokens"));
  for (const BatchSizeStep& step : config.batch_sizes()) {
    add_line(
        text, "global batch size",
        str(step.batch_size, " samples from sample ", step.first_sample, " on, in ",
            step.batch_size / config.training.micro_batch_size, " microbatches of ", config.training.micro_batch_size));
  }
  add_line(text, "precision", std::string(enum_name(config.training.precision)));
  add_line(text, "learning rate",
           str(config.optimizer.lr, " to ", config.optimizer.min_lr, ", ", enum_name(config.optimizer.lr_decay_style)));
  add_line(text, "operations",
           str(flops_per_token(config.model) * tokens, " FLOP, ", human_count(flops_per_token(config.model)),
               "FLOP per token"));
  return text;
}

}  // namespace

std::string run_plan(const Config& config) {
  return parameters(config.model) + memory(config) + schedule(config);
}

}  // namespace mcpp

#include "plan/measured_run.h"

#include <algorithm>
#include <cmath>

#include "base/number_text.h"
#include "base/strings.h"
#include "model/config/expert_layers.h"
#include "model/layer_memory.h"

namespace mcpp {
namespace {

constexpr double kMuchOff = 0.2, kOfStep = 0.02;

double computing(const StepTime& t) {
  return t.work.computing() + t.turns + t.optimizer;
}

std::string value_text(const RunPart& part, double value) {
  return part.is_memory ? human_bytes(value) : fixed(1e3 * value, 1) + " ms";
}

void speed_up(MeasuredRates& rates, double factor) {
  for (std::vector<double>* list : {&rates.forward, &rates.input_gradient, &rates.weight_gradient,
                                    &rates.attention_forward, &rates.attention_backward})
    for (double& rate : *list) rate *= factor;
  for (std::vector<double>* list : {&rates.norm_forward, &rates.norm_backward, &rates.residual_forward,
                                    &rates.residual_backward, &rates.activation_forward, &rates.activation_backward})
    for (double& ns : *list) ns /= factor;
  for (double* ns : {&rates.dropped_score_forward, &rates.dropped_score_backward, &rates.bias_forward,
                     &rates.bias_backward, &rates.rope_forward, &rates.rope_backward, &rates.loss,
                     &rates.embedding_forward, &rates.embedding_backward, &rates.update})
    *ns /= factor;
}

}  // namespace

std::vector<RunPart> compare(const StepTime& predicted, double predicted_memory, const MeasuredRun& measured) {
  std::vector<RunPart> parts{
      {"step", predicted.seconds, measured.seconds},
      {"computing", computing(predicted), measured.computing()},
      {"waiting in the pipeline", predicted.bubble + predicted.messages, measured.bubble * measured.seconds},
      {"communication, not hidden", predicted.communication() - predicted.messages,
       measured.exposed_communication * measured.seconds}};
  if (measured.peak_memory_bytes > 0)
    parts.push_back({"memory", predicted_memory, measured.peak_memory_bytes, /*is_memory=*/true});
  return parts;
}

std::vector<RunPart> much_off(const std::vector<RunPart>& parts) {
  std::vector<RunPart> found;
  const double step = parts.front().measured;
  for (const RunPart& part : parts) {
    const double difference = std::abs(part.measured - part.predicted);
    const bool counts = part.is_memory || difference > kOfStep * step;
    if (counts && difference > kMuchOff * std::max(part.predicted, part.measured)) found.push_back(part);
  }
  return found;
}

Hardware as_measured(Hardware h, const StepTime& predicted, const MeasuredRun& measured) {
  const double factor = computing(predicted) / measured.computing();
  DeviceRates& d = h.device;
  for (double* rate : {&d.bf16_attained, &d.fp8_attained, &d.fp32_attained, &d.attention_attained, &d.memory_attained})
    *rate *= factor;
  speed_up(h.measured_bf16, factor);
  speed_up(h.measured_fp32, factor);
  const double communication = predicted.communication() - predicted.messages,
               real = measured.exposed_communication * measured.seconds;
  if (communication <= 0 || real <= 0) return h;
  for (double& bandwidth : h.links.bandwidth) bandwidth *= communication / real;
  for (double& latency : h.links.latency) latency *= real / communication;
  return h;
}

std::vector<RunPart> compare_modules(const Job& job, const MeasuredRun& measured) {
  std::vector<RunPart> parts;
  const auto add = [&](const std::string& name, double predicted) {
    if (const auto found = measured.modules.find(name); found != measured.modules.end())
      parts.push_back({name, predicted, found->second});
  };
  const ModelConfig& m = job.work.model;
  const auto steps = static_cast<double>(job.layout.microbatches(job.work.global_batch_size));
  const auto all = [&](const UnitTime& t) { return steps * t.total().total(); };
  add("embedding", all(embedding_time(job)));
  for (const StageContents& stage : split_stages(job.layout.stage_split(m))) {
    i64 layer = stage.first_layer;
    for (const LayerGroup& group : layer_groups(job.layout.recompute, stage.num_layers())) {
      for (const i64 end = layer + group.layers; layer < end; ++layer) {
        const LayerKind kind =
            layers_with_experts(m.moe, layer, layer + 1).empty() ? LayerKind::Dense : LayerKind::Experts;
        for (const auto& [half, name] :
             {std::pair(LayerHalf::Attention, "self_attention"), std::pair(LayerHalf::Mlp, "mlp")}) {
          const UnitTime t = half_time(job, kind, half);
          add(str("decoder.layers.", layer, ".", name), all(group.is_recomputed ? recomputed(t) : t));
        }
      }
    }
  }
  add("output_layer", all(output_time(job)));
  return parts;
}

std::vector<RunPart> compare_memory(const std::vector<MemoryEstimate>& predicted, const MeasuredRun& measured) {
  std::vector<RunPart> parts;
  for (const auto& [name, of] : {std::pair("parameters", &MemoryEstimate::params),
                                 {"gradients", &MemoryEstimate::grads},
                                 {"optimizer state", &MemoryEstimate::optimizer_state},
                                 {"activations", &MemoryEstimate::activations}}) {
    const auto found = measured.peak_by_class.find(name);
    if (found == measured.peak_by_class.end()) continue;
    double most = 0;
    for (const MemoryEstimate& rank : predicted) most = std::max(most, rank.*of);
    parts.push_back({name, most, found->second, /*is_memory=*/true});
  }
  return parts;
}

std::string parts_text(const std::vector<RunPart>& parts) {
  std::string text =
      str("  ", pad_right("", 36), pad_left("predicted", 12), pad_left("measured", 12), pad_left("off", 10), "\n");
  for (const RunPart& part : parts)
    text += str("  ", pad_right(part.name, 36), pad_left(value_text(part, part.predicted), 12),
                pad_left(value_text(part, part.measured), 12),
                pad_left(part.predicted > 0 ? fixed(100 * part.off(), 1) + " %" : "", 10), "\n");
  return text;
}

std::string comparison_text(const std::vector<RunPart>& parts) {
  std::string text = parts_text(parts);
  for (const RunPart& part : much_off(parts))
    text += str("  ", part.name,
                " is more than 20 % off: a slow device or link, or hardware that the file does not describe\n");
  return text;
}

}  // namespace mcpp

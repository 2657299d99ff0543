#include "plan/measured_run.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/number_format.h"
#include "base/strings.h"
#include "model/config/moe.h"
#include "model/layer_memory.h"

namespace mcpp {
namespace {

constexpr double kRelativeTolerance = 0.2, kAbsoluteTolerance = 0.02;

/// Returns the time in which a rank does not wait for others.
double computing(const StepTime& t) {
  return t.work.computing() + t.work.offloaded + t.core_wait + t.optimizer + t.data;
}

std::string value_text(const RunPart& part, double value) {
  return part.is_memory ? human_bytes(value) : fixed(1e3 * value, 1) + " ms";
}

/// Class of memory that is planned. Kernel workspaces and other classes are not.
struct PlannedClass {
  std::string_view name;  ///< name_of(MemoryClass)
  double MemoryEstimate::*bytes;
};
constexpr std::array<PlannedClass, 4> kPlannedClasses{{{"parameters", &MemoryEstimate::params},
                                                       {"gradients", &MemoryEstimate::grads},
                                                       {"optimizer state", &MemoryEstimate::optimizer_state},
                                                       {"activations", &MemoryEstimate::activations}}};

/// Class of a module's memory that is planned.
struct ModuleClass {
  std::string_view name;
  double ModuleMemory::*bytes;
};
constexpr std::array<ModuleClass, 4> kModuleClasses{{{"parameters", &ModuleMemory::params},
                                                     {"gradients", &ModuleMemory::grads},
                                                     {"optimizer state", &ModuleMemory::optimizer_state},
                                                     {"activations", &ModuleMemory::activations}}};

/// Returns the position of a module in forward order.
i64 forward_index(const std::string& module) {
  if (module == embedding_module()) return -1;
  i64 layer = std::numeric_limits<i64>::max();
  const std::size_t dot = module.rfind('.');
  if (dot != std::string::npos) std::from_chars(module.data() + dot + 1, module.data() + module.size(), layer);
  return layer;
}

/// Returns the bytes that a rank offloads to `tier`.
double offloaded_bytes(const Layout& layout, const MemoryEstimate& rank, OffloadTier tier) {
  const auto tier_bytes = [&](OffloadTier part_tier, double bytes) { return part_tier == tier ? bytes : 0; };
  const double activations =
      tier == OffloadTier::File ? static_cast<double>(rank.activations_on_disk) : rank.offloaded_activations;
  return tier_bytes(layout.states_tier, rank.offloaded) + tier_bytes(layout.params_tier, rank.offloaded_params) +
         tier_bytes(layout.activations_tier, activations);
}

/// Returns the index of the row of compare_groups() that groups of this name (ParallelState) belong to; norm groups
/// count as gradients.
std::size_t comparison_row(const std::string& group) {
  if (group == "tp" || group == "expert_tp" || group == "tp_cp") return 0;
  if (group.starts_with("cp_")) return 1;
  return group == "ep" || group == "ep_node" ? 2 : 3;
}

std::string error_text(const RunPart& part) {
  if (part.predicted <= 0) return "";
  constexpr double kTimes = 10;
  const double times = part.measured / part.predicted;
  return times < kTimes ? fixed(100 * part.relative_error(), 1) + " %" : human_count(times) + " times";
}

std::string parts_text(const std::vector<RunPart>& parts, const MeasuredRun& measured) {
  std::string text =
      str("  ", pad_right("", 36), pad_left("predicted", 12), pad_left("measured", 12), pad_left("off", 14), "\n");
  for (const RunPart& part : parts)
    text += str("  ", pad_right(part.name, 36), pad_left(value_text(part, part.predicted), 12),
                pad_left(value_text(part, part.measured), 12), pad_left(error_text(part), 14),
                exceeds_tolerance(part, measured) ? " *" : "", "\n");
  return text;
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

PredictedStep predict_step(const PredictionInput& input, double memory_bytes) {
  return {.time = step_time(input),
          .stages = step_time_by_rank(input),
          .memory_bytes = memory_bytes,
          .global_batch_size = input.work.global_batch_size};
}

std::vector<RunPart> compare(const StepTime& predicted, double predicted_memory, const MeasuredRun& measured) {
  std::vector<RunPart> parts{
      {"step", predicted.seconds, measured.seconds},
      {"compute", computing(predicted), measured.computing()},
      {"waiting in the pipeline", predicted.bubble + predicted.messages, measured.bubble * measured.seconds},
      {"exposed communication", predicted.communication() - predicted.messages,
       measured.exposed_communication * measured.seconds}};
  if (measured.peak_memory_bytes > 0)
    parts.push_back({"memory", predicted_memory, measured.peak_memory_bytes, /*is_memory=*/true});
  return parts;
}

bool exceeds_tolerance(const RunPart& part, const MeasuredRun& measured) {
  const double difference = std::abs(part.measured - part.predicted),
               total = part.is_memory ? measured.peak_memory_bytes : measured.seconds;
  return difference > kAbsoluteTolerance * total &&
         difference > kRelativeTolerance * std::max(part.predicted, part.measured);
}

std::string tolerance_warning(const RunPart& part) {
  const std::string measured = value_text(part, part.measured), predicted = value_text(part, part.predicted);
  const std::string relative_error = part.predicted <= 0 ? "" : str(", ", error_text(part));
  return str(part.name, " is more than 20 % off: ", measured, part.is_memory ? "" : " of a step", ", predicted ",
             predicted, relative_error);
}

RunSpeed infer_speed(const StepTime& predicted, const MeasuredRun& measured) {
  RunSpeed speed{.compute = computing(predicted) / measured.computing()};
  const double communication = predicted.communication() - predicted.messages,
               measured_seconds = measured.exposed_communication * measured.seconds;
  if (communication > kAbsoluteTolerance * predicted.seconds && measured_seconds > 0)
    speed.links = communication / measured_seconds;
  return speed;
}

Hardware scale_hardware(Hardware h, const RunSpeed& speed) {
  DeviceRates& d = h.device;
  for (const auto& [peak, attained] : gemm_rates(d)) *attained *= speed.compute;
  for (double* rate : {&d.attention_attained, &d.memory_attained}) *rate *= speed.compute;
  d.kernel_gap /= speed.compute;
  for (const auto& [peak, attained] : gemm_rates(d)) *peak = std::max(*peak, *attained);
  d.bf16_peak = std::max(d.bf16_peak, d.attention_attained);
  d.memory_bandwidth = std::max(d.memory_bandwidth, d.memory_attained);
  speed_up(h.measured_bf16, speed.compute);
  speed_up(h.measured_fp32, speed.compute);
  for (double& bandwidth : h.links.bandwidth) bandwidth *= speed.links;
  for (double& latency : h.links.latency) latency /= speed.links;
  return h;
}

std::vector<RunPart> compare_stages(const std::vector<StepTime>& predicted, const MeasuredRun& measured) {
  std::vector<RunPart> parts;
  const std::size_t stages = predicted.size(), ranks = measured.computing_by_rank.size();
  if (stages < 2 || ranks % stages != 0 || ranks == 0) return parts;
  const std::size_t ranks_per_stage = ranks / stages;  // the pipeline is the outermost axis
  for (std::size_t stage = 0; stage < stages; ++stage) {
    double sum = 0;
    for (std::size_t i = 0; i < ranks_per_stage; ++i) sum += measured.computing_by_rank[stage * ranks_per_stage + i];
    parts.push_back({.name = str("compute of pipeline rank ", stage),
                     .predicted = computing(predicted[stage]),
                     .measured = sum / static_cast<double>(ranks_per_stage)});
  }
  return parts;
}

std::vector<RunPart> compare_groups(const StepTime& predicted, const MeasuredRun& measured) {
  if (measured.groups.empty()) return {};
  const PassTime& work = predicted.work;
  std::vector<RunPart> parts{
      {.name = "tensor-parallel communication", .predicted = work.tensor_parallel},
      {.name = "context-parallel communication", .predicted = work.context_parallel},
      {.name = "token dispatch and combine", .predicted = work.expert_parallel},
      {.name = "exposed gradients and weights", .predicted = work.data_parallel + predicted.data_parallel}};
  for (const auto& [group, seconds] : measured.groups) parts[comparison_row(group)].measured += seconds;
  std::erase_if(parts, [](const RunPart& part) { return part.predicted <= 0 && part.measured <= 0; });
  return parts;
}

std::vector<RunPart> compare_modules(const PredictionInput& input, const MeasuredRun& measured) {
  std::vector<RunPart> parts;
  const auto add = [&](const std::string& name, double predicted) {
    if (const auto it = measured.modules.find(name); it != measured.modules.end())
      parts.push_back({name, predicted, it->second});
  };
  const ModelConfig& m = input.work.model;
  const auto steps = static_cast<double>(input.layout.microbatches(input.work.global_batch_size));
  const auto all = [&](const UnitTime& t) { return steps * t.total().total(); };
  add("embedding", all(embedding_time(input)));
  for (const StageContents& stage : split_stages(input.layout, m.num_layers)) {
    i64 layer = stage.first_layer;
    for (const LayerGroup& group : layer_groups(input.layout.recompute, stage.num_layers())) {
      for (const i64 end = layer + group.layers; layer < end; ++layer) {
        const BlockSpec block = block_spec(m, layer);
        for (const auto& [part, name] :
             {std::pair(mixer_of(block), "self_attention"), std::pair(feed_forward_of(block), "mlp")}) {
          const UnitTime t = layer_time(input, part);
          add(str("decoder.layers.", layer, ".", name), all(group.is_recomputed ? add_full_recompute(t) : t));
        }
      }
    }
  }
  add("output_layer", all(output_time(input, {})));
  return parts;
}

std::vector<RunPart> compare_memory(const Layout& layout, const std::vector<MemoryEstimate>& predicted,
                                    const MeasuredRun& measured) {
  std::vector<RunPart> parts;
  const auto add = [&](const std::string& name, double bytes, const auto& of) {
    double max_bytes = 0;
    for (const MemoryEstimate& rank : predicted) max_bytes = std::max(max_bytes, of(rank));
    if (max_bytes > 0 || bytes > 0) parts.push_back({name, max_bytes, bytes, /*is_memory=*/true});
  };
  for (const auto& [name, of] : kPlannedClasses)
    if (const auto it = measured.peak_by_class.find(std::string(name)); it != measured.peak_by_class.end())
      add(it->first, it->second, [of = of](const MemoryEstimate& rank) { return rank.*of; });
  for (const auto& [name, bytes] : measured.peak_by_class)
    if (std::ranges::find(kPlannedClasses, name, &PlannedClass::name) == kPlannedClasses.end())
      add(name, bytes, [](const MemoryEstimate&) { return 0.0; });
  if (measured.peak_by_class.empty()) return parts;
  add("kept in host memory", measured.in_host_bytes,
      [&](const MemoryEstimate& rank) { return offloaded_bytes(layout, rank, OffloadTier::Host); });
  add("kept on disk", measured.on_disk_bytes,
      [&](const MemoryEstimate& rank) { return offloaded_bytes(layout, rank, OffloadTier::File); });
  return parts;
}

std::vector<ModuleParts> compare_module_memory(const std::vector<MemoryByModule>& predicted,
                                               const MeasuredRun& measured) {
  std::map<std::string, std::vector<const ModuleMemory*>> by_module;
  for (const MemoryByModule& rank : predicted)
    for (const auto& [module, memory] : rank) by_module[module].push_back(&memory);
  std::vector<ModuleParts> parts;
  for (const auto& [module, ranks] : by_module) {
    const auto bytes_by_class = measured.module_bytes.find(module);
    if (bytes_by_class == measured.module_bytes.end()) continue;
    ModuleParts part{.name = module, .classes = {}};
    for (const auto& [name, bytes] : kModuleClasses) {
      const auto it = bytes_by_class->second.find(std::string(name));
      if (it == bytes_by_class->second.end()) continue;
      double sum = 0, count = 0;
      for (const ModuleMemory* rank : ranks)  // the copy of tied embeddings at the output has no activations
        if (rank->*bytes > 0) sum += rank->*bytes, ++count;
      part.classes.push_back({std::string(name), count > 0 ? sum / count : 0, it->second, /*is_memory=*/true});
    }
    parts.push_back(std::move(part));
  }
  std::ranges::sort(parts, {}, [](const ModuleParts& part) { return std::pair(forward_index(part.name), part.name); });
  return parts;
}

std::string module_memory_text(const std::vector<ModuleParts>& modules, const MeasuredRun& measured) {
  if (modules.empty()) return "";
  constexpr std::size_t kName = 22, kValue = 12;
  std::string classes = pad_right("memory of modules", kName + 2), columns = std::string(kName + 2, ' ');
  for (const ModuleClass& c : kModuleClasses) {
    classes += pad_left(std::string(c.name), 2 * kValue) + "  ";
    columns += pad_left("predicted", kValue) + pad_left("measured", kValue) + "  ";
  }
  const auto line = [](std::string text) { return text.erase(text.find_last_not_of(' ') + 1) + "\n"; };
  std::string text = line(classes) + line(columns);
  for (const ModuleParts& module : modules) {
    std::string row = "  " + pad_right(module.name, kName);
    for (const ModuleClass& c : kModuleClasses) {
      const auto part = std::ranges::find(module.classes, c.name, &RunPart::name);
      const bool has_part = part != module.classes.end();
      row += str(pad_left(has_part ? human_bytes(part->predicted) : "", kValue),
                 pad_left(has_part ? human_bytes(part->measured) : "", kValue),
                 has_part && exceeds_tolerance(*part, measured) ? " *" : "  ");
    }
    text += line(row);
  }
  return text;
}

std::string comparison_text(const std::vector<RunPart>& totals, const std::vector<RunPart>& details,
                            const MeasuredRun& measured) {
  std::string text = parts_text(totals, measured);
  if (!details.empty()) text += "of these\n" + parts_text(details, measured);
  for (const RunPart& part : totals)
    if (exceeds_tolerance(part, measured))
      text += str("  ", part.name,
                  " is more than 20 % off: a slow device or link, or hardware that the file does not describe\n");
  if (std::ranges::any_of(details, [&](const RunPart& part) { return exceeds_tolerance(part, measured); }))
    text += "  * is more than 20 % off\n";
  return text;
}

}  // namespace mcpp

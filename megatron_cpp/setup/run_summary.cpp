#include "megatron_cpp/setup/run_summary.h"

#include <algorithm>

#include "base/number_format.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/param_group_check.h"
#include "model/config/block_spec.h"
#include "model/flops.h"
#include "model/mup.h"
#include "optimizer/param_group.h"
#include "optimizer/update_rule.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/simulate.h"
#include "tensor/cpu/attention/attention_memory.h"
#include "tensor/dtype.h"
#include "tensor/ops/low_precision/quantize.h"

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
  std::string text = str("model: ", describe_blocks(model), "\n");
  text += str("parameters: ", count(counts.total()), " (", counts.total(), ")\n");
  add_line(text, "word embeddings", count(counts.word_embeddings));
  if (counts.position_embeddings > 0) add_line(text, "position embeddings", count(counts.position_embeddings));
  add_line(text, "attention", count(counts.attention));
  add_line(text, "mlp", count(counts.mlp));
  if (counts.experts > 0)
    add_line(text, "experts",
             str(count(counts.experts), " in total; each token uses ", count(active_parameters(model)),
                 " parameters of the model"));
  add_line(text, "norms", count(counts.norms));
  if (counts.output > 0) add_line(text, "output layer", count(counts.output));
  if (counts.mtp > 0) add_line(text, "multi-token prediction", count(counts.mtp));
  return text;
}

/// Memory of one rank of a run, except its pipeline rank.
struct RunMemory {
  ActivationSetup setup;
  RankMemorySpec rank;
};

double largest_total(const std::vector<MemoryEstimate>& ranks) {
  return std::ranges::max_element(ranks, {}, &MemoryEstimate::total)->total();
}

/// Label of a subordinate line for offloaded data.
std::string tier_label(OffloadTier tier) {
  return tier == OffloadTier::File ? "  on disk" : "  in host memory";
}

/// Formats the bytes of offloaded state or weights; asynchronous saves need a second copy on disk.
std::string offloaded_bytes_text(OffloadTier tier, const Config& config, double bytes) {
  const bool is_twice = tier == OffloadTier::File && config.checkpoint.async_save;
  return human_bytes(bytes) + (is_twice ? ", plus the same amount for saves" : "");
}

std::string memory(const Config& config, int world_size, int cores_per_rank) {
  const std::vector<MemoryEstimate> ranks = estimate_memory_by_stage(config, world_size);
  const auto largest = std::ranges::max_element(ranks, {}, &MemoryEstimate::total);
  std::string text = str("memory: ", human_bytes(largest->total()), world_size > 1 ? " per rank" : "", " estimated");
  if (ranks.size() > 1) text += str(", most on pipeline rank ", largest - ranks.begin());
  text += "\n";
  add_line(text, "parameters", human_bytes(largest->params));
  if (largest->offloaded_params > 0)
    add_line(text, tier_label(config.optimizer.offload_params),
             offloaded_bytes_text(config.optimizer.offload_params, config, largest->offloaded_params));
  add_line(text, "gradients", human_bytes(largest->grads));
  add_line(text, "optimizer state", human_bytes(largest->optimizer_state));
  if (largest->offloaded > 0)
    add_line(text, tier_label(config.optimizer.offload),
             offloaded_bytes_text(config.optimizer.offload, config, largest->offloaded));
  add_line(text, "activations", human_bytes(largest->activations));
  if (largest->offloaded_activations > 0)
    add_line(text, tier_label(config.training.offload_activations), human_bytes(largest->offloaded_activations));
  if (largest->recorded_passes > 0) add_line(text, "CUDA graphs", str(human_bytes(largest->recorded_passes), " more"));
  if (config.model.moe.num_experts > 0) {
    const double peak = largest_total(estimate_memory_by_stage(config, world_size, ExpertLoad::Max));
    if (const double more = peak - largest->total(); more > 0)
      add_line(
          text, "experts",
          str("if equally loaded; up to ", human_bytes(more), " more if all tokens choose the experts of one rank"));
  }
  if (largest->peak_excess > 0) add_line(text, "minus, peaks do not coincide", human_bytes(largest->peak_excess));
  if (largest->save_copy > 0) add_line(text, "copy for saves", human_bytes(largest->save_copy));
  if (!config.checkpoint.local_save.empty()) {
    const std::vector<double> parts = local_part_bytes_by_stage(config, world_size);
    const i64 count = max_local_parts(config.checkpoint);
    add_line(text, "local checkpoints",
             str(human_bytes(static_cast<double>(count) * std::ranges::max(parts)), " in local_save: ", count,
                 " parts of ", human_bytes(std::ranges::max(parts))));
  }
  if (const double scratch = attention_scratch_bytes(config, cores_per_rank); scratch > 0)
    add_line(text, "attention workspace", human_bytes(scratch));
  if (const double workspace = low_precision_workspace_bytes(config, world_size); workspace > 0)
    add_line(text, "GEMM workspace", str("up to ", human_bytes(workspace), " in low precision"));
  return text;
}

/// Describes how tokens reach their experts, with the nodes that the estimate assumes.
std::string dispatcher_text(const Layout& l) {
  const std::string name(enum_name(l.dispatcher));
  if (l.dispatcher != TokenDispatcherType::Hierarchical || l.exchange_group().ranks == 1) return name;
  const i64 nodes = l.inter_node_exchange_group().ranks, ranks = l.node_exchange_group().ranks;
  if (l.dispatch_node_ranks == 0)
    return str(name, " (all on one node is assumed; parallel.moe_dispatch_node_ranks sets the ranks of a node)");
  return str(name, nodes > 1 ? str(" between ", nodes, " nodes of ", ranks) : str(" within nodes of ", ranks),
             ranks > 1 ? " ranks" : " rank");
}

std::string layout(const Config& config, int world_size) {
  if (world_size == 1) return "";
  const Layout l = layout_of(config, world_size);
  std::string text = str("layout: ", world_size, " ranks\n");
  add_line(text, "tensor parallel", str(l.tp, l.sequence_parallel ? ", with sequence parallelism" : ""));
  if (l.cp > 1) add_line(text, "context parallel", str(l.cp, ", ", enum_name(l.cp_comm_type)));
  if (config.model.moe.num_experts > 0)
    add_line(
        text, "expert parallel",
        str(l.ep, ", ", dispatcher_text(l), "; each expert on ", l.expert_tp(), ", in ", l.expert_dp(), " copies"));
  if (l.pp > 1) {
    const Timeline timeline = simulate(lower(l.make_schedule(microbatches_per_step(config, world_size))));
    add_line(text, "pipeline parallel",
             str(l.pp, ", ", enum_name(l.schedule), ", bubble ", fixed(100 * timeline.bubble, 1),
                 "% when forward, input and weight gradients take the same time"));
  }
  add_line(text, "data parallel", str(l.dp, ", ZeRO stage ", l.zero_stage));
  const CommFormats& formats = l.formats;
  std::vector<std::string> bytes;
  if (formats.quantized_weights) bytes.emplace_back("weights");
  if (formats.quantized_gradients) bytes.emplace_back("gradients");
  if (!bytes.empty()) add_line(text, "int8 communication", join(bytes, " and "));
  if (formats.fp8_param_gather) add_line(text, "weights", "sent in fp8 where GEMMs round them");
  if (formats.grad_reduce_dtype == GradDType::Bf16) add_line(text, "gradients", "sent in bf16, summed in fp32");
  if (formats.grad_reduce_format() != GradReduceFormat::Full && l.node_ranks > 1)
    add_line(text, "gradients", str("first summed within groups of ", l.node_ranks, " ranks"));
  if (formats.power_sgd_rank > 0)
    add_line(text, "matrix gradients",
             str("PowerSGD factors of rank ", formats.power_sgd_rank,
                 l.power_sgd_start_iter > 0 ? str(" after iteration ", l.power_sgd_start_iter) : ""));
  if (l.has_secondary_shard())
    add_line(text, "second copy", str("of the weights, within groups of ", l.node_ranks, " ranks"));
  return text;
}

/// Returns the number of fp32 elements kept per weight in addition to the master weight.
double state_elements_per_weight(const Config& config, bool is_matrix) {
  const OptimizerKind rule = rule_for(is_matrix, config.optimizer);
  const DType type = dtype_of(config.training.precision);
  constexpr i64 kWeights = kQuantizedBlock;
  double bytes = 0;
  std::vector<StorageForm> forms = make_update_rule(rule, config.optimizer, type)->forms();
  if (has_ema(config.optimizer)) forms.push_back(StorageForm::Plain);
  for (const StorageForm form : forms) {
    for (const VectorSpec& vector : stored_vectors(form, accumulate_dtype(type), kWeights))
      bytes += static_cast<double>(vector.bytes());
  }
  return bytes / static_cast<double>(kWeights * size_of(accumulate_dtype(type)));
}

/// Returns RankMemorySpec::save_copy_ranks. On GPUs the copy is in host memory, which is not estimated.
i64 save_copy_ranks(const Config& config, const Layout& layout) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (!checkpoint.async_save || config.device.device != DeviceType::Cpu) return 0;
  // Local checkpoints contain everything that the rank updates.
  if (checkpoint.local_save_interval > 0) return layout.zero_stage == 0 ? 1 : layout.shard_group().ranks;
  return checkpoint.save_interval > 0 ? layout.dp * layout.cp : 0;  // the final save is synchronous and needs no copy
}

std::string precision(const Config& config) {
  std::string type(enum_name(config.training.precision));
  if (config.optimizer.stochastic_rounding) type += ", weights rounded stochastically";
  const Fp8Layers fp8 = fp8_layers(config);
  if (fp8.first == fp8.end) return type;
  std::string text = str(type, ", linear maps of ", fp8.end - fp8.first, " layers in fp8 (",
                         enum_name(config.training.fp8), ", ", enum_name(config.training.fp8_recipe), ")");
  if (config.device.device == DeviceType::Cpu) text += ", emulated";
  return text;
}

/// Formats a number of operations with an SI prefix: "2.47 PFLOP".
std::string flop_text(double flops) {
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  std::size_t prefix = 0;
  for (; flops >= 1000 && prefix < kPrefixes.size(); ++prefix) flops /= 1000;
  return str(significant(flops, 3), " ", prefix > 0 ? kPrefixes.substr(prefix - 1, 1) : "", "FLOP");
}

std::string device(const Config& config, int cores_per_rank) {
  const std::string name(enum_name(config.device.device));
  if (config.device.device != DeviceType::Cpu) return name;
  const int threads = num_rank_threads(config.device, cores_per_rank);
  return str(name, ", ", threads, threads == 1 ? " thread" : " threads");
}

std::string schedule(const Config& config, int world_size, int cores_per_rank) {
  const auto [iterations, samples] = config.training_length();
  const double tokens = static_cast<double>(samples) * static_cast<double>(config.model.seq_length);
  std::string text = config.stage ? "stage:\n" : "run:\n";
  add_line(text, "iterations", str(iterations));
  add_line(text, "samples", str(samples, " of ", config.model.seq_length, " tokens: ", human_count(tokens), " tokens"));
  for (const BatchSizeStep& step : config.batch_sizes()) {
    const i64 microbatches = layout_of(config, world_size).microbatches(step.batch_size);
    add_line(text, "global batch size",
             str(step.batch_size, " samples from sample ", step.first_sample, " on, in ", microbatches,
                 microbatches == 1 ? " microbatch" : " microbatches", world_size > 1 ? " per rank of " : " of ",
                 config.training.micro_batch_size));
  }
  add_line(text, "device", device(config, cores_per_rank) + (world_size > 1 ? " per rank" : ""));
  add_line(text, "precision", precision(config));
  add_line(text, "learning rate",
           str(config.optimizer.lr, " to ", config.optimizer.min_lr, ", ", enum_name(config.optimizer.lr_decay_style)));
  add_line(text, "operations",
           str(flop_text(flops_per_token(config.model) * tokens), ", ", flop_text(flops_per_token(config.model)),
               " per token"));
  return text;
}

/// Returns the memory of a run; the caller sets rank.pipeline_rank.
RunMemory run_memory(const Config& config, int world_size, ExpertLoad load) {
  const Layout layout = layout_of(config, world_size);
  RunMemory memory{.setup = activation_setup(layout, dtype_of(config.training.precision)),
                   .rank = {.stages = split_stages(layout, config.model.num_layers),
                            .schedule = layout.make_schedule(microbatches_per_step(config, world_size)),
                            .layout = layout,
                            .segment_elements = config.optimizer.offload_segment_size,
                            .save_copy_ranks = save_copy_ranks(config, layout),
                            .records_passes = config.device.cuda_graph_impl != CudaGraphImpl::None}};
  memory.setup.expert_load = load;
  memory.setup.fp8 = fp8_layers(config);
  return memory;
}

}  // namespace

std::vector<MemoryEstimate> estimate_memory_by_stage(const Config& config, int world_size, ExpertLoad load) {
  auto [setup, rank] = run_memory(config, world_size, load);
  const StatesPerWeight states = states_per_weight(config);
  std::vector<MemoryEstimate> ranks;
  for (rank.pipeline_rank = 0; rank.pipeline_rank < rank.schedule.ranks; ++rank.pipeline_rank)
    ranks.push_back(estimate_memory(config.model, setup, states, rank));
  return ranks;
}

/// A checkpoint has the tensors of a run without offloading and with plain states.
std::vector<double> local_part_bytes_by_stage(const Config& config, int world_size) {
  Config plain = config;
  plain.checkpoint.async_save = true;
  plain.checkpoint.local_save_interval = 1;
  plain.device.device = DeviceType::Cpu;
  plain.optimizer.offload = plain.optimizer.offload_params = OffloadTier::Device;
  plain.optimizer.store_param_remainders = false;
  plain.optimizer.exp_avg_dtype = plain.optimizer.exp_avg_sq_dtype = StateDType::Fp32;
  std::vector<double> bytes;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(plain, world_size)) bytes.push_back(rank.save_copy);
  return bytes;
}

i64 max_local_parts(const CheckpointConfig& config) {
  return (std::max<i64>(1, config.local_keep_latest_k) + 1) * (1 + config.local_replicas);
}

double attention_scratch_bytes(const Config& config, int cores_per_rank) {
  if (config.device.device != DeviceType::Cpu) return 0;
  const i64 threads = num_rank_threads(config.device, cores_per_rank);
  const Layout& p = config.parallel;
  const i64 all = config.model.seq_length, own = all / p.keys_group().ranks;
  const kernel::AttentionRows rows{
      .queries = own, .keys = p.cp_comm_type == CpCommType::AllGather ? all : own, .head_dim = config.model.head_dim()};
  return static_cast<double>(
      threads * kernel::attention_backward_bytes(rows, size_of(accumulate_dtype(dtype_of(config.training.precision)))));
}

std::vector<MemoryByModule> module_memory_by_stage(const Config& config, int world_size) {
  auto [setup, rank] = run_memory(config, world_size, ExpertLoad::Even);
  std::vector<MemoryByModule> ranks;
  for (rank.pipeline_rank = 0; rank.pipeline_rank < rank.schedule.ranks; ++rank.pipeline_rank)
    ranks.push_back(memory_by_module(config.model, setup, states_per_weight(config), rank));
  return ranks;
}

StatesPerWeight states_per_weight(const Config& config) {
  return {.matrix_states = state_elements_per_weight(config, true),
          .other_states = state_elements_per_weight(config, false),
          .has_param_remainders = config.optimizer.store_param_remainders,
          .rounds_stochastically = config.optimizer.stochastic_rounding,
          .has_encoded_moments = config.optimizer.exp_avg_dtype != StateDType::Fp32 ||
                                 config.optimizer.exp_avg_sq_dtype != StateDType::Fp32};
}

namespace {

std::string describe_mup(const Config& config) {
  const ModelConfig& model = config.model;
  if (!model.mup.is_used) return "";
  OptimizerConfig optimizer = config.optimizer;
  optimizer.param_group.clear();
  Param matrix("hidden matrix", {1, 1}, Init::Normal, 1);
  matrix.matrices = {matrix.box};
  apply_mup(model, matrix);
  return str("maximal update parametrization: width x ", significant(model.width_mult(), 4), "\n",
             "  hidden matrices: learning rate x ", significant(group_of(matrix, optimizer).lr_mult, 4),
             ", initial values x ", significant(matrix.init_std, 4), "\n", "  logits x ",
             significant(model.logit_scale(), 4), ", attention scores x ", significant(model.softmax_scale(), 4), "\n");
}

}  // namespace

std::string describe_run(const Config& config, int world_size, int cores_per_rank) {
  return parameters(config.model) + layout(config, world_size) + memory(config, world_size, cores_per_rank) +
         schedule(config, world_size, cores_per_rank) + describe_mup(config) + describe_param_groups(config) +
         describe_low_precision(config);
}

}  // namespace mcpp

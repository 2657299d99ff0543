#include "model/meta_model.h"

#include <algorithm>
#include <cmath>

#include "base/integer_math.h"
#include "base/strings.h"
#include "parallel/cp/sequence_partition.h"
#include "parallel/ep/capacity.h"
#include "tensor/op_trace.h"

namespace mcpp {
namespace {

/// Limits on the number of weights and activations that ensure that byte counts fit in 64 bits. No host has that much
/// memory.
const double kMaxWeights = std::exp2(56), kMaxActivations = std::exp2(53);

/// Returns the total width of the latents of multi-latent attention.
double latent_width(const ModelConfig& c) {
  return c.mla.is_used ? static_cast<double>(c.mla.q_lora_rank + c.mla.kv_lora_rank + c.mla.qk_pos_emb_head_dim) : 0;
}

/// Returns an upper bound on the number of weights.
double estimate_weight_count(const ModelConfig& c) {
  const auto real = [](i64 value) { return static_cast<double>(value); };
  const double width = real(c.hidden_size), heads = real(c.num_attention_heads.max()) * real(c.head_dim());
  const double experts = real(c.moe.num_experts) * real(c.moe_ffn()) + real(c.moe.shared_expert_intermediate_size);
  const double layer =
      width * (4 * heads + 3 * std::max(real(c.max_ffn()), experts)) + latent_width(c) * (width + 2 * heads);
  return real(c.num_layers) * layer + width * (2 * real(c.padded_vocab_size()) + real(c.max_positions()));
}

/// Returns an upper bound on the number of values saved per token.
double estimate_activation_count(const ModelConfig& c) {
  const auto real = [](i64 value) { return static_cast<double>(value); };
  const double heads = real(c.num_attention_heads.max()) * real(c.head_dim());
  const double mlp = std::max(real(c.max_ffn()), real(c.moe.router_topk) * real(c.moe_ffn()));
  return real(c.num_layers) * (8 * real(c.hidden_size) + 8 * heads + 4 * mlp + 4 * latent_width(c)) +
         3 * real(c.padded_vocab_size());
}

/// Returns the largest number of rows that all ranks of an exchange send to an expert; 0 = no limit.
i64 max_expert_rows(const ModelConfig& c, const ActivationSetup& setup) {
  if (c.moe.expert_capacity_factor == 0) return 0;
  const i64 ranks = setup.expert_parallel * setup.expert_tensor_parallel;
  const i64 capacity = expert_capacity(c.seq_length * setup.micro_batch_size * c.moe.router_topk, c.moe.num_experts,
                                       c.moe.expert_capacity_factor);
  const i64 microbatches = max_microbatches(ranks, setup.tensor_parallel * setup.partition.ranks());
  return std::min(capacity * microbatches, ceil_div(setup.tokens(c), setup.tensor_parallel) * ranks);
}

}  // namespace

void check_countable(const ModelConfig& config, i64 tokens) {
  const auto check = [](double count, double limit, const auto&... what) {
    if (count > limit)
      fail(ExitCode::OutOfMemory, "not enough memory for this model: ", what..., " are about ", human_count(count),
           " elements, more than any host can hold");
  };
  check(estimate_weight_count(config), kMaxWeights, "weights of model.num_layers = ", config.num_layers,
        ", hidden_size = ", config.hidden_size, ", ffn_hidden_size = ", config.max_ffn(),
        ", num_experts = ", config.moe.num_experts);
  check(static_cast<double>(tokens) * estimate_activation_count(config), kMaxActivations,
        "activations of a microbatch of ", tokens, " tokens in ", config.num_layers, " layers");
}

MetaModelContext::MetaModelContext(const ActivationSetup& setup)
    : setup_(setup), tp_(make_meta_communicator(setup.tensor_parallel, kTpGroup)) {
  const auto make = [](i64 ranks, const char* name) {
    return ranks > 1 ? make_meta_communicator(ranks, name) : nullptr;
  };
  heads_ = make(setup.partition.heads, kHeadsGroup);
  ring_ = make(setup.partition.rings, kRingGroup);
  exchange_ = make(setup.expert_parallel * setup.expert_tensor_parallel, kExchangeGroup);
  if (exchange_ && setup.dispatcher == TokenDispatcherType::Hierarchical) {
    const int ranks = exchange_->size(), node_ranks = static_cast<int>(setup.dispatch_node_ranks);
    nodes_ = std::make_shared<ExchangeNodes>(ExchangeNodes::consecutive(ranks, node_ranks > 0 ? node_ranks : ranks));
    node_exchange_ = make_meta_communicator(std::ssize(nodes_->members(0)), kNodeExchangeGroup);
  }
  sample_ = make(setup.tensor_parallel * setup.partition.ranks(), kSampleGroup);
}

ModelContext MetaModelContext::context(const ModelConfig& config) {
  check_countable(config);
  return {.config = config,
          .dtype = setup_.dtype,
          .recompute = setup_.recompute,
          .device = device_,
          .tp = *tp_,
          .sequence_parallel = setup_.sequence_parallel,
          .tp_comm_overlap = setup_.tp_comm_overlap,
          .cp = {.comm_type = setup_.cp_comm_type,
                 .partition = setup_.partition,
                 .heads = heads_.get(),
                 .ring = ring_.get()},
          .experts = {.dispatcher = setup_.dispatcher,
                      .ep = static_cast<int>(setup_.expert_parallel),
                      .tp = static_cast<int>(setup_.expert_tensor_parallel),
                      .exchange = exchange_.get(),
                      .nodes = nodes_,
                      .node_exchange = node_exchange_.get(),
                      .sample = sample_.get(),
                      .assumed_choices = {.load = setup_.expert_load,
                                          .imbalance = setup_.expert_imbalance,
                                          .max_rows = max_expert_rows(config, setup_),
                                          .num_groups = config.moe.router_num_groups,
                                          .group_topk = config.moe.router_group_topk}},
          .fp8 = setup_.fp8};
}

MetaRun::MetaRun(const ModelConfig& config, const ActivationSetup& setup)
    : setup_(setup),
      meta_(setup),
      context_(meta_.context(config)),
      input_shape_{context_.local_seq_length() / (context_.splits_sequence() ? setup.tensor_parallel : 1),
                   setup.micro_batch_size, config.hidden_size} {
  if (setup.partition.ranks() > 1)
    partition_ = std::make_shared<SamplePartition>(SamplePartition::zigzag(setup.partition, config.seq_length));
}

void MetaRun::allocate(Param& param) {
  param.value = Tensor::empty(param.box.shape, setup_.dtype, device(), MemoryClass::Params);
  param.main_grad = Tensor::empty(param.box.shape, accumulate_dtype(setup_.dtype), device(), MemoryClass::Grads);
}

Tensor MetaRun::make_input(i64 count) {
  Shape shape = input_shape_;
  shape.front() *= count;
  return Tensor::empty(shape, setup_.dtype, device());
}

Tensor MetaRun::make_targets() {
  return Tensor::empty({context_.local_seq_length(), setup_.micro_batch_size}, DType::I32, device());
}

MicrobatchContext MetaRun::make_microbatch() {
  MicrobatchContext microbatch;
  microbatch.samples.assign(static_cast<std::size_t>(setup_.micro_batch_size), 0);
  microbatch.partition = partition_;
  if (partition_) microbatch.positions = partition_->rank_positions(0);
  if (setup_.overlap_moe_expert_parallel_comm)
    microbatch.yield = [this] {
      if (OpTrace* trace = device().trace()) trace->yield();
    };
  return microbatch;
}

namespace {

ModelContext without_embedding(ModelContext context) {
  context.final_norm_rank = 1;  // the embedding is on rank 0
  return context;
}

}  // namespace

MetaOutput::MetaOutput(const ModelConfig& config, const ActivationSetup& setup, const StageContents& stage)
    : run_(config, setup),
      output_(without_embedding(run_.context()), stage.output_part(), nullptr),
      future_(static_cast<std::size_t>(config.mtp_num_layers), {run_.make_targets(), run_.make_targets()}) {
  for (const auto& [layer, router] : output_.routers()) router->allocate_state();
}

void MetaOutput::visit(const ParamVisitor& f) {
  output_.visit([&](Param& param, int) { f(param); });
}

void MetaOutput::forward(MicrobatchContext& microbatch) {
  const bool has_predictions = output_.stage().receives_predictions() && microbatch.saves_for_backward;
  const Tensor input = run_.make_input(has_predictions ? num_predictions() : 1);
  if (output_.stage().has_output)
    output_.loss(input, {run_.make_targets(), future_}, 1, microbatch);
  else
    output_.forward(input, microbatch, future_);
}

void MetaOutput::backward(MicrobatchContext& microbatch) {
  output_.backward(output_.stage().has_output ? Tensor() : run_.make_input(num_predictions()), microbatch);
}

void visit_meta_params(const ModelConfig& config, const std::function<void(const Param&)>& f,
                       const ActivationSetup& setup) {
  MetaModelContext meta(setup);
  const ModelContext context = meta.context(config);
  const auto visit = [&](GPTModel& part) { part.visit([&](Param& param, int) { f(param); }); };
  GPTModel embedding(context, {.first_layer = 0, .end_layer = 0, .has_embedding = true, .has_output = false}, nullptr);
  visit(embedding);
  for (i64 i = 0; i < config.num_layers; ++i) {
    GPTModel layer(context, {.first_layer = i, .end_layer = i + 1, .has_embedding = false, .has_output = false},
                   nullptr);
    visit(layer);
  }
  GPTModel output(context, {.first_layer = 0, .end_layer = 0, .has_embedding = false, .has_output = true}, &embedding);
  visit(output);
}

}  // namespace mcpp

#include "model/flops.h"

#include <algorithm>
#include <array>

#include "model/block_trace.h"
#include "model/meta_model.h"

namespace mcpp {
namespace {

/// Returns the count that a parameter belongs to, by its name.
i64& count_for(const std::string& name, ParameterCounts& counts) {
  static constexpr std::array<std::pair<const char*, i64 ParameterCounts::*>, 8> kParts{
      {{"mtp.", &ParameterCounts::mtp},
       {"word_embeddings.", &ParameterCounts::word_embeddings},
       {"position_embeddings.", &ParameterCounts::position_embeddings},
       {"layernorm.", &ParameterCounts::norms},
       {".self_attention.", &ParameterCounts::attention},
       {".mixer.", &ParameterCounts::attention},
       {".mlp.", &ParameterCounts::mlp},
       {"output_layer.", &ParameterCounts::output}}};
  for (const auto& [name_part, member] : kParts)
    if (name.find(name_part) != std::string::npos) return counts.*member;
  fail(ExitCode::Internal, name, " has no parameter count");
}

}  // namespace

ParameterCounts count_parameters(const ModelConfig& config) {
  ParameterCounts counts;
  visit_meta_params(config, [&](const Param& param) {
    count_for(param.name, counts) += param.numel();
    const bool is_matrix = !param.matrices.empty(), is_expert = param.placement.grid == GridKind::Expert;
    if (is_matrix) counts.matrices += param.numel();
    if (is_expert) counts.experts += param.numel();
    if (is_expert && is_matrix) counts.expert_matrices += param.numel();
  });
  return counts;
}

namespace {

/// Returns how many of `expert_params` expert parameters do not process a given token.
i64 inactive_expert_params(i64 expert_params, const MoeConfig& moe) {
  return moe.num_experts == 0 ? 0 : expert_params / moe.num_experts * (moe.num_experts - moe.router_topk);
}

}  // namespace

i64 active_parameters(const ModelConfig& config) {
  const ParameterCounts counts = count_parameters(config);
  return counts.total() - inactive_expert_params(counts.experts, config.moe);
}

double attended_keys(i64 window, i64 seq_length) {
  const auto s = static_cast<double>(seq_length);
  const double w = window == 0 ? s : std::min(s, static_cast<double>(window));
  return w - w * w / (2 * s);  // on average, the first w queries attend to half as many keys as the others
}

double attention_flops_per_token(const ModelConfig& c) {
  const BlockKinds blocks(c);
  const std::vector<i64> layers = blocks.count(0, c.num_blocks());
  BlockTraces traces(c);
  double flops = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind)
    for (const OpRecord& op : traces.get({}, mixer_of(blocks.kinds[kind])).forward.ops)
      if (op.kind != OpKind::Matmul) flops += static_cast<double>(layers[kind]) * op.flops;
  return flops / static_cast<double>(c.seq_length);
}

double flops_per_token(const ModelConfig& c) {
  const ParameterCounts counts = count_parameters(c);
  const i64 output = counts.output > 0 ? counts.output : counts.word_embeddings;
  // 6 = forward, input gradient and weight gradient, each with a multiplication and an addition.
  const i64 matrices = counts.matrices - inactive_expert_params(counts.expert_matrices, c.moe);
  return 6 * static_cast<double>(matrices + output * (1 + c.mtp_num_layers)) + 3 * attention_flops_per_token(c);
}

double flops_per_batch(const ModelConfig& c, i64 samples) {
  return flops_per_token(c) * static_cast<double>(c.seq_length) * static_cast<double>(samples);
}

}  // namespace mcpp

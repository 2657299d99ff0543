// Steps whose peak memory is compared with estimates.
#pragma once
#include <string>
#include <vector>

#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::test {

/// Large enough that the tensors of a layer outweigh everything that the formulas ignore. In "experts", every expert
/// processes all tokens, so that the load is even. In "padded_experts", experts have the same number of rows at any
/// load.
inline ModelConfig memory_model(const std::string& name) {
  ModelConfig config = name == "gpt2" ? tiny_gpt2() : tiny_llama();
  config.num_layers = 8;
  config.hidden_size = 64;
  config.ffn_hidden_size = name == "gpt2" ? 256 : 192;
  config.num_attention_heads = 4;
  config.num_query_groups = name == "gpt2" ? 4 : 2;
  config.seq_length = 64;
  config.vocab_size = 512;
  config.hidden_dropout = name == "gpt2" ? 0.1 : 0;
  if (name.starts_with("mtp")) config.mtp_num_layers = 2;
  if (name == "mtp_experts") config.mtp_hybrid_layer_pattern = "*E";
  if (name == "latent") config = with_latent_attention(config);
  if (name.ends_with("experts")) {
    config.moe.latent_size = name == "latent_experts" ? 48 : 0;
    config.moe.num_experts = config.moe.router_topk = 4;
    config.moe.layer_freq = {0, 0, 1, 1, 0, 1, 1, name == "mtp_experts" ? 0 : 1};
    config.moe.ffn_hidden_size = 96;
    config.moe.aux_loss_coeff = 0.01;
    config.moe.shared_expert_intermediate_size = 32;
  }
  if (name == "padded_experts") {
    config.moe.router_topk = 2;
    config.moe.expert_capacity_factor = 1.25;
    config.moe.pad_expert_input_to_capacity = true;
  }
  return config;
}

/// Returns the workspace of a GEMM in fp32 on this processor, which estimates do not count. It is 0 with AVX-512, where
/// a library multiplies.
inline double gemm_workspace_bytes() {
  CpuDevice device;
  const auto matrix = [&] { return Tensor::zeros({128, 128}, DType::F32, device); };
  Tensor c = matrix();
  ops::matmul(matrix(), matrix(), c, {.transpose_b = true});
  return static_cast<double>(device.memory().by_class[static_cast<std::size_t>(MemoryClass::Workspace)].peak);
}

inline RunTask memory_task(const std::string& name, DType dtype, i64 samples) {
  RunTask task = learnable_task(memory_model(name), dtype);
  task.global_batch_size = samples;
  task.micro_batch_size = 2;
  return task;
}

using Peaks = std::vector<MemoryTable>;  ///< by rank

/// Returns the memory of one step after `after` steps; the first step has nothing to gather yet.
inline Peaks peaks(const RunTask& task, const RunLayout& layout, i64 after = 1) {
  Peaks result(static_cast<std::size_t>(layout.ranks()));
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    for (i64 step = 0; step < after; ++step) self.step(step);
    self.device().reset_peak();
    self.step(after);
    result[static_cast<std::size_t>(rank)] = self.device().memory();
  });
  return result;
}

inline double peak_of(const MemoryTable& table, MemoryClass c) {
  return static_cast<double>(table.by_class[static_cast<std::size_t>(c)].peak);
}

}  // namespace mcpp::test

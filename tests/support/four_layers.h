// Small task for tests that run a step on many layouts.
#pragma once
#include "tests/support/layouts/layout_run.h"

namespace mcpp::test {

/// Returns a task with four layers configured like `config`, each with four experts if `has_experts`.
inline RunTask four_layers(ModelConfig config, bool has_experts, i64 global_batch_size) {
  config.num_layers = 4;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.seq_length = 16;
  config.vocab_size = 64;
  if (has_experts) {
    config.moe.num_experts = 4;
    config.moe.router_topk = 2;
  }
  RunTask task = learnable_task(config);
  task.global_batch_size = global_batch_size;
  return task;
}

}  // namespace mcpp::test

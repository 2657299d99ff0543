// Cluster with simple rates, and models for it.
#pragma once
#include "plan/cost/workload.h"

namespace mcpp::test {

/// Returns nodes of 8, at most 1024 devices; bandwidths within and between nodes in GB/s; no latency, no losses.
inline Hardware toy_cluster(double intra_node_bandwidth, double inter_node_bandwidth) {
  Hardware hardware;
  hardware.device = {.name = "test",
                     .bf16_peak = 300,
                     .bf16_attained = 250,
                     .fp32_peak = 20,
                     .fp32_attained = 18,
                     .attention_attained = 200,
                     .cores = 100,
                     .memory = 80,
                     .memory_bandwidth = 2000,
                     .memory_attained = 1800};
  hardware.links = {.tier = {"intra_node", "inter_node"},
                    .ranks = {8, 1024},
                    .bandwidth = {intra_node_bandwidth, inter_node_bandwidth},
                    .attained = {1, 1},
                    .latency = {0, 0}};
  return hardware;
}

/// Returns GPT-2 with samples of 2048 tokens.
inline Workload toy_workload(i64 layers, i64 hidden, i64 heads, i64 batch) {
  Workload work;
  work.model.num_layers = layers;
  work.model.hidden_size = hidden;
  work.model.num_attention_heads = heads;
  work.model.seq_length = 2048;
  work.model.vocab_size = 32000;
  work.global_batch_size = batch;
  return work;
}

/// Returns toy_workload() with experts in all layers, two of which process each token.
inline Workload toy_mixture(i64 layers, i64 hidden, i64 heads, i64 batch, i64 experts) {
  Workload work = toy_workload(layers, hidden, heads, batch);
  work.model.moe.num_experts = experts;
  return work;
}

}  // namespace mcpp::test

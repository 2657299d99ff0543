// Models and layouts of published training runs. docs/planning.md lists their sources.
#pragma once
#include <string>

#include "megatron_cpp/config/hardware_file.h"
#include "model/config/config.h"
#include "plan/cost/workload.h"
#include "tests/support/build.h"

namespace mcpp::test {

inline Hardware catalogue(const std::string& name) {
  return load_hardware(name, source_folder() / "configs/hardware").for_ranks(1);
}

/// Returns Megatron-LM's GPT with sequences of 2048 tokens.
inline ModelConfig gpt(i64 layers, i64 hidden, i64 heads) {
  ModelConfig m;
  m.num_layers = layers;
  m.hidden_size = hidden;
  m.num_attention_heads = heads;
  m.seq_length = 2048;
  m.vocab_size = 51200;
  return m;
}

inline ModelConfig llama(i64 layers, i64 hidden, i64 ffn, i64 heads, i64 groups, i64 vocabulary, i64 sequence) {
  ModelConfig m;
  m.num_layers = layers;
  m.hidden_size = hidden;
  m.ffn_hidden_size = ffn;
  m.num_attention_heads = heads;
  m.num_query_groups = groups;
  m.vocab_size = vocabulary;
  m.seq_length = sequence;
  m.position_embedding_type = PositionEmbedding::Rope;
  m.normalization = Normalization::RMSNorm;
  m.activation_func = ActivationFunction::SwiGLU;
  m.add_bias_linear = false;
  m.untie_embeddings_and_output_weights = true;
  m.hidden_dropout = m.attention_dropout = 0;
  return m;
}

/// Row of a table in Narayanan et al. 2021.
struct GptRow {
  double billions;
  i64 heads, hidden, layers, tp, pp, gpus, batch;
  double tflops;
};

/// Table 1: weak scaling on A100 80 GB.
inline constexpr GptRow kWeakScaling[]{
    {1.7, 24, 2304, 24, 1, 1, 32, 512, 137},          {3.6, 32, 3072, 30, 2, 1, 64, 512, 138},
    {7.5, 32, 4096, 36, 4, 1, 128, 512, 142},         {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135},
    {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138},       {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140},
    {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148},    {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155},
    {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163}, {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163}};

/// Row of table 4 in Dubey et al. 2024: Llama 3 405B on H100.
struct LlamaRow {
  i64 gpus, cp, sequence, batch;
  double tflops;

  Workload work() const {
    return {.model = llama(126, 16384, 53248, 128, 8, 128256, sequence), .global_batch_size = batch};
  }
  /// Returns a layout of 128 stages with one layer each, except the first and the last, which have the embedding and
  /// the output. Data parallelism is outermost (section 3.3.2).
  Layout layout() const {
    return {.tp = 8,
            .cp = cp,
            .pp = 16,
            .dp = gpus / (8 * cp * 16),
            .sequence_parallel = true,
            .cp_comm_type = CpCommType::AllGather,
            .schedule = ScheduleKind::Interleaved,
            .chunks = 8,
            .stages = "E|(t|)*126L",
            .zero_stage = 1,
            .is_pipeline_innermost = true};
  }
};
inline constexpr LlamaRow kLlama405B[]{
    {8192, 1, 8192, 2048, 430}, {16384, 1, 8192, 2048, 400}, {16384, 16, 131072, 128, 380}};

}  // namespace mcpp::test

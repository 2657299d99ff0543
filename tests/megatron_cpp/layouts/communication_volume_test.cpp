// Bytes that the groups of ranks send in one complete step, counted by the communicators, compared with closed
// formulas. Bytes are counted as by CommMeter: the bytes that one rank sends if an operation uses the network
// optimally.
#include <gtest/gtest.h>

#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::communication_volume_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

ModelConfig model_of(const std::string& name) {
  ModelConfig config = name == "gpt2" ? test::tiny_gpt2() : test::tiny_llama();
  config.num_layers = 4;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.seq_length = 16;
  config.vocab_size = 64;
  return config;
}

constexpr i64 kBatch = 2;

RunTask task_of(const std::string& name, DType dtype, i64 samples) {
  RunTask task = test::learnable_task(model_of(name), dtype);
  task.micro_batch_size = kBatch;
  task.global_batch_size = samples;
  return task;
}

using Meters = std::map<std::string, CommMeter>;

/// Calls f(rank, meters of the second step) on each rank. The first step does not wait for weights.
void in_each_rank(const RunTask& task, const RunLayout& layout,
                  const std::function<void(LayoutRank&, const Meters&)>& f) {
  run_local_ranks(layout.ranks(), [&](Communicator& world, int) {
    LayoutRank self(task, layout, world);
    self.step(0);
    for (const auto& [name, meter] : self.parallel().meters) meter->reset();
    self.step(1);
    Meters meters;
    for (const auto& [name, meter] : self.parallel().meters) meters[name] = *meter;
    f(self, meters);
  });
}

/// In addition to the formulas, a step reduces loss and tokens (two fp64) and the squares of the gradient (one).
i64 all_reduce(i64 bytes, i64 ranks) {
  return 2 * bytes * (ranks - 1) / ranks;
}
/// Bytes of the sums of a step: losses, targets and the z-loss of the output.
constexpr i64 kStepTotals = 3 * sizeof(double), kSquares = 8;

struct Volume {
  int stage;
  i64 all_reduces, reduce_scatters, gathers;  ///< of all parameters, in a step of one microbatch
};

class DataParallelVolumeTest : public testing::TestWithParam<std::tuple<const char*, DType, Volume, int, bool>> {};

/// For P parameters including padding: 2 P (d - 1) / d elements, at stage 3 3 P (d - 1) / d (Rajbhandari et al. 2020,
/// section 7). At stage 3 the output layer gathers tied embeddings once more.
TEST_P(DataParallelVolumeTest, MatchesFormula) {
  const auto& [name, dtype, volume, ranks, overlaps] = GetParam();
  const RunLayout layout{
      {.dp = ranks, .zero_stage = volume.stage, .overlap_grad_reduce = overlaps, .overlap_param_gather = overlaps}};
  in_each_rank(task_of(name, dtype, ranks * kBatch), layout,
               [&, v = volume, d = ranks, dtype = dtype](LayoutRank& rank, const Meters& meters) {
                 const BufferPlan& plan = rank.state().chunks()[0].memory->buffers().front()->plan();
                 const bool tied =
                     !rank.state().chunks()[0].model->context().config.untie_embeddings_and_output_weights;
                 const i64 p = plan.total, embedding = tied && v.stage == 3 ? plan.buckets[0].size() : 0;
                 const CommMeter& meter = meters.at("dp_shard");
                 EXPECT_EQ(meter[CommOp::AllReduce].bytes,
                           v.all_reduces * all_reduce(4 * p, d) + (v.stage > 0 ? all_reduce(kSquares, d) : 0));
                 EXPECT_EQ(meter[CommOp::ReduceScatter].bytes, v.reduce_scatters * 4 * p * (d - 1) / d);
                 EXPECT_EQ(meter[CommOp::AllGather].bytes, size_of(dtype) * (v.gathers * p + embedding) * (d - 1) / d);
                 EXPECT_EQ(meters.at("dp").total_bytes(), all_reduce(kStepTotals, d));
                 i64 all = 0;
                 for (const auto& [group, m] : meters) all += m.total_bytes();
                 EXPECT_EQ(all, meter[CommOp::AllReduce].bytes + meter[CommOp::ReduceScatter].bytes +
                                    meter[CommOp::AllGather].bytes + meters.at("dp").total_bytes());
               });
}

INSTANTIATE_TEST_SUITE_P(Stages, DataParallelVolumeTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values(DType::F32, DType::BF16),
                                          testing::Values(Volume{0, 1, 0, 0}, Volume{1, 0, 1, 1}, Volume{2, 0, 1, 1},
                                                          Volume{3, 0, 1, 2}),
                                          testing::Values(2, 4), testing::Bool()));

class TensorParallelVolumeTest : public testing::TestWithParam<std::tuple<const char*, int, i64>> {};

/// n = s b h e bytes cross each boundary of a tensor-parallel region. Per microbatch and layer: 2 boundaries in forward
/// and 2 in backward, each an all-reduce (Shoeybi et al. 2019, section 3). Embedding: one in forward; output layer: one
/// in backward, and three fp32 values per token for the loss.
TEST_P(TensorParallelVolumeTest, MatchesFormula) {
  const auto& [name, ranks, microbatches] = GetParam();
  const RunTask task = task_of(name, DType::F32, microbatches * kBatch);
  for (const bool overlaps : {false, true}) {
    in_each_rank(task, {{.tp = ranks, .tp_comm_overlap = overlaps}},
                 [&, t = ranks, m = microbatches](LayoutRank&, const Meters& meters) {
                   const ModelConfig& c = task.model;
                   const i64 tokens = c.seq_length * kBatch, n = tokens * c.hidden_size * 4;
                   const CommMeter& meter = meters.at("tp");
                   EXPECT_EQ(meter[CommOp::AllReduce].bytes,
                             m * ((4 * c.num_layers + 2) * all_reduce(n, t) + 3 * all_reduce(4 * tokens, t)));
                   EXPECT_EQ(meter.total_bytes(), meter[CommOp::AllReduce].bytes);
                   EXPECT_EQ(meters.at("model").total_bytes(), all_reduce(kSquares, t));
                 });
  }
}

/// With sequence parallelism (Korthikanti et al. 2022, section 4.2) a layer gathers 2 times in forward and 2 in
/// backward, and the 2 column-parallel layers gather their input again; it reduce-scatters 2 + 2 times. The output
/// layer has 1 + 2 and 1, the embedding 1 in backward and 1 in forward. Once per step, the gradients of replicated
/// parameters (norms and learned positions) are all-reduced.
TEST_P(TensorParallelVolumeTest, MatchesFormulaWithSequenceParallelism) {
  const auto& [name, ranks, microbatches] = GetParam();
  const RunTask task = task_of(name, DType::F32, microbatches * kBatch);
  in_each_rank(task, {{.tp = ranks, .sequence_parallel = true}},
               [&, name = name, t = ranks, m = microbatches](LayoutRank&, const Meters& meters) {
                 const ModelConfig& c = task.model;
                 const bool is_gpt2 = name == std::string("gpt2");
                 const i64 tokens = c.seq_length * kBatch, n = tokens * c.hidden_size * 4;
                 const i64 norms = (2 * c.num_layers + 1) * c.hidden_size * (is_gpt2 ? 2 : 1);
                 const i64 positions = is_gpt2 ? c.seq_length * c.hidden_size : 0;
                 const CommMeter& meter = meters.at("tp");
                 EXPECT_EQ(meter[CommOp::AllGather].bytes, m * (6 * c.num_layers + 3) * n * (t - 1) / t);
                 EXPECT_EQ(meter[CommOp::ReduceScatter].bytes, m * (4 * c.num_layers + 2) * n * (t - 1) / t);
                 EXPECT_EQ(meter[CommOp::AllReduce].bytes,
                           m * 3 * all_reduce(4 * tokens, t) + all_reduce(4 * (norms + positions), t));
                 EXPECT_EQ(meter.total_bytes(), meter[CommOp::AllGather].bytes + meter[CommOp::ReduceScatter].bytes +
                                                    meter[CommOp::AllReduce].bytes);
               });
}

/// Messages of all ranks by group of ranks, in excess of a run in bf16.
struct Excess {
  std::map<std::string, i64> calls, bytes;  // calls of all_reduce, bytes of all operations
};
Excess excess_over_bf16(const RunTask& in_low_precision, const RunLayout& layout) {
  Excess excess;
  std::mutex mutex;
  for (const bool is_bf16 : {true, false}) {
    RunTask task = in_low_precision;
    if (is_bf16) task.fp8 = Fp8::None, task.fp8_recipe = Fp8RecipeName::Tensorwise, task.low_precision.clear();
    in_each_rank(task, layout, [&](LayoutRank&, const Meters& meters) {
      const std::lock_guard lock(mutex);
      for (const auto& [name, meter] : meters) {
        excess.calls[name] += (is_bf16 ? -1 : 1) * meter[CommOp::AllReduce].calls;
        excess.bytes[name] += (is_bf16 ? -1 : 1) * meter.total_bytes();
      }
    });
  }
  return excess;
}

const RunLayout kLowPrecisionLayouts[]{
    {{.tp = 2}}, {{.tp = 2, .sequence_parallel = true}}, {{.tp = 2, .cp = 2}}, {{.pp = 2, .dp = 2}}};

/// With one scale per tensor, each of a layer's four linear maps reduces the amax of input and weight over the ranks
/// that share a microbatch, and in backward that of the gradient: with tensor and context parallelism only.
TEST(Fp8VolumeTest, AddsFewBytesPerLinearLayer) {
  for (const RunLayout& layout : kLowPrecisionLayouts) {
    for (const bool is_nvfp4 : {false, true}) {
      if (is_nvfp4 && test::runs_on_gpus()) continue;
      RunTask task = task_of("llama", DType::BF16, layout.dp * kBatch);
      if (is_nvfp4)
        task.low_precision = {{.modules = OneOrList<std::string>("decoder.*"), .recipe = GemmRecipe::Nvfp4}};
      else
        task.fp8 = Fp8::Hybrid;
      const Excess excess = excess_over_bf16(task, layout);
      const i64 linear_maps = 4 * model_of("llama").num_layers, ranks = layout.ranks();
      const i64 each = all_reduce(2 * 4, 2) + all_reduce(4, 2);
      for (const auto& [name, more] : excess.calls) {
        const bool agrees = (name == "tp" && layout.tp > 1) || (name == "cp_ring" && layout.cp > 1);
        EXPECT_EQ(more, agrees ? 2 * linear_maps * ranks : 0) << name;
        EXPECT_EQ(excess.bytes.at(name), agrees ? each * linear_maps * ranks : 0) << name;
      }
    }
  }
}

/// Blocks lie within the shard of a rank.
TEST(BlockVolumeTest, AddsNoMessages) {
  if (test::runs_on_gpus()) GTEST_SKIP() << "blocks need a CPU";
  for (const RunLayout& layout : kLowPrecisionLayouts) {
    RunTask task = task_of("llama", DType::BF16, layout.dp * kBatch);
    task.low_precision = {{.modules = OneOrList<std::string>("*"), .recipe = GemmRecipe::Mxfp8}};
    const Excess excess = excess_over_bf16(task, layout);
    for (const auto& [name, more] : excess.calls) EXPECT_EQ(more, 0) << name;
    for (const auto& [name, more] : excess.bytes) EXPECT_EQ(more, 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallelVolumeTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values(2),
                                          testing::Values<i64>(1, 3)));

class ContextParallelVolumeTest : public testing::TestWithParam<std::tuple<const char*, DType, RunLayout>> {};

/// Per layer and microbatch, for k bytes of a rank's keys and values (w in fp32) and q of its queries. Ring: (n - 1) k
/// forward; (n - 1) (k + w) backward (Liu et al. 2023; the last hop returns the gradient with all contributions).
/// Gathered: (n - 1) k, then (n - 1) (k + w). Heads exchanged: (n - 1) / n of k + 2 q, forward and backward (Jacobs et
/// al. 2023, section 3.2: 4 exchanges of s h / n each).
TEST_P(ContextParallelVolumeTest, MatchesFormula) {
  const auto& [name, dtype, layout] = GetParam();
  constexpr i64 kMicrobatches = 2;
  RunTask task = task_of(name, dtype, kMicrobatches * kBatch);
  task.model.num_attention_heads = 8;
  in_each_rank(task, layout, [&, n = layout.cp, l = layout, dtype = dtype](LayoutRank&, const Meters& meters) {
    const ModelConfig& c = task.model;
    const i64 tokens = c.seq_length * kBatch / n, passes = kMicrobatches * c.num_layers;
    const i64 kv_elements = tokens * 2 * c.query_groups(0) * c.head_dim(), k = kv_elements * size_of(dtype),
              w = kv_elements * 4, q = tokens * c.hidden_size * size_of(dtype);
    const CommMeter &ring = meters.at("cp_ring"), &heads = meters.at("cp_heads");
    if (l.cp_comm_type == CpCommType::A2a) {
      EXPECT_EQ(ring.total_bytes(), 0);
      EXPECT_EQ(heads.total_bytes(), passes * 2 * (k + 2 * q) * (n - 1) / n);
      return;
    }
    EXPECT_EQ(heads.total_bytes(), 0);
    if (l.cp_comm_type == CpCommType::P2p) {
      EXPECT_EQ(ring[CommOp::Send].bytes, passes * (n - 1) * (2 * k + w));
      EXPECT_EQ(ring.total_bytes(), ring[CommOp::Send].bytes);
    } else {
      EXPECT_EQ(ring[CommOp::AllGather].bytes, passes * 2 * (n - 1) * k);
      EXPECT_EQ(ring[CommOp::ReduceScatter].bytes, passes * (n - 1) * w);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    CommTypes, ContextParallelVolumeTest,
    testing::Combine(testing::Values("gpt2", "llama"), testing::Values(DType::F32, DType::BF16),
                     testing::Values(RunLayout{"p2p_2", {.cp = 2}}, RunLayout{"p2p_4", {.cp = 4}},
                                     RunLayout{"gather_4", {.cp = 4, .cp_comm_type = CpCommType::AllGather}},
                                     RunLayout{"a2a_2", {.cp = 2, .cp_comm_type = CpCommType::A2a}})),
    [](const auto& p) {
      return str(std::get<0>(p.param), "_", name_of(std::get<1>(p.param)), "_", std::get<2>(p.param).name);
    });

/// Bytes that the ring of four ranks sends in a step, by rank: keys and values in forward and backward (in units of k)
/// and their gradients (in units of w). Masked keys are not sent.
struct RingVolumeCase {
  const char* name;
  i64 window;
  i64 document;  ///< tokens per document; 0 = one document per sample
  std::vector<i64> keys, gradients;
};

class RingVolumeTest : public testing::TestWithParam<RingVolumeCase> {};

TEST_P(RingVolumeTest, ExcludesMaskedKeys) {
  const RingVolumeCase& expected = GetParam();
  constexpr i64 kMicrobatches = 2, kRanks = 4;
  RunTask task = task_of("llama", DType::F32, kMicrobatches * kBatch);
  if (expected.window > 0) task.model.window_size = {expected.window - 1, 0};
  if (expected.document > 0) {
    task.eod = 3;
    task.tokens = [length = expected.document, drawn = task.tokens](i64 sample) {
      std::vector<i32> tokens = drawn(sample);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] == 3) tokens[i] = 4;
        if ((i + 1) % static_cast<std::size_t>(length) == 0) tokens[i] = 3;
      }
      return tokens;
    };
  }
  in_each_rank(task, {{.cp = kRanks}}, [&](LayoutRank& rank, const Meters& meters) {
    const ModelConfig& c = task.model;
    const i64 k = c.seq_length * kBatch / kRanks * 2 * c.query_groups(0) * c.head_dim() * 4;
    const auto ring_rank = static_cast<std::size_t>(rank.parallel().cp_ring->rank());
    EXPECT_EQ(meters.at("cp_ring").total_bytes(),
              kMicrobatches * c.num_layers * k * (expected.keys[ring_rank] + expected.gradients[ring_rank]));
  });
}

// With windows and short documents, each rank has 4 consecutive positions of the 16.
INSTANTIATE_TEST_SUITE_P(
    CommTypes, RingVolumeTest,
    testing::Values(RingVolumeCase{"everything", 0, 0, {6, 6, 6, 6}, {3, 3, 3, 3}},
                    // The keys of a rank go to the next one, which returns its share of their gradient.
                    RingVolumeCase{"window_4", 4, 0, {2, 2, 2, 0}, {0, 1, 1, 1}},
                    RingVolumeCase{"window_1_past", 2, 0, {2, 2, 2, 0}, {0, 1, 1, 1}},
                    RingVolumeCase{"documents_of_4", 0, 4, {0, 0, 0, 0}, {0, 0, 0, 0}},
                    // Each document is shared by two ranks: neighbors, or other ranks to balance the cost.
                    RingVolumeCase{"documents_of_8_window_3", 3, 8, {2, 0, 2, 0}, {0, 1, 0, 1}},
                    RingVolumeCase{"documents_of_8", 0, 8, {4, 4, 4, 4}, {1, 1, 1, 1}}),
    [](const auto& p) { return std::string(p.param.name); });

struct PipelineCase {
  const char* name;
  RunLayout layout;
};
const PipelineCase kPipelines[]{
    {"pp2", {{.pp = 2}}},
    {"pp4", {{.pp = 4}}},
    {"pp4_gpipe", {{.pp = 4, .schedule = ScheduleKind::GPipe}}},
    {"pp4_zb_h1", {{.pp = 4, .schedule = ScheduleKind::ZbH1}}},
    {"pp2_interleaved", {{.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}}},
    {"pp2_zb_v", {{.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}}},
    {"tp2_sp_pp2", {{.tp = 2, .pp = 2, .sequence_parallel = true}}},
};

class PipelineVolumeTest : public testing::TestWithParam<std::tuple<const char*, PipelineCase>> {};

/// Each microbatch crosses every boundary between stages on different ranks twice, with s b h e bytes (sequence
/// parallelism: s b h e / t). The boundary at the turn of the V is inside a rank.
TEST_P(PipelineVolumeTest, IsOneMessageEachWayPerMicrobatchAndStageBoundary) {
  const auto& [name, pipeline] = GetParam();
  constexpr i64 kMicrobatches = 4;
  const RunLayout& layout = pipeline.layout;
  const RunTask task = task_of(name, DType::F32, kMicrobatches * kBatch);
  std::mutex mutex;
  i64 forward = 0, backward = 0;
  in_each_rank(task, layout, [&](LayoutRank& rank, const Meters& meters) {
    const std::lock_guard lock(mutex);
    forward += meters.at("pp")[CommOp::Send].bytes;
    backward += meters.at("pp_backward")[CommOp::Send].bytes;
    EXPECT_EQ(meters.at("pp")[CommOp::AllReduce].bytes, all_reduce(kStepTotals, layout.pp));
    EXPECT_EQ(meters.at("pp_backward").total_bytes(), meters.at("pp_backward")[CommOp::Send].bytes);
    const ModelConfig& c = task.model;
    const bool tied =
        !c.untie_embeddings_and_output_weights && row_of(layout.schedule).placement == StagePlacement::Loop;
    const i64 table = c.padded_vocab_size() * c.hidden_size * 4 / layout.tp;
    if (rank.parallel().embedding) {
      EXPECT_EQ(meters.at("embedding").total_bytes(), tied ? all_reduce(table, 2) : 0);
    }
  });
  const i64 message = task.model.seq_length * kBatch * task.model.hidden_size * 4 / layout.tp;
  const i64 turns = row_of(layout.schedule).placement == StagePlacement::V ? 1 : 0;
  const i64 stage_boundaries = layout.pp * layout.chunks - 1 - turns;
  EXPECT_EQ(forward, layout.tp * stage_boundaries * kMicrobatches * message);
  EXPECT_EQ(backward, layout.tp * stage_boundaries * kMicrobatches * message);
}

class PaddedExpertVolumeTest : public testing::TestWithParam<RunLayout> {};

/// Per layer and microbatch, a rank sends the capacity of each expert on other ranks, whatever tokens choose, four
/// times: tokens, results, and the gradients of both. If etp ranks share an expert, each of them receives all rows.
/// Counts are gathered once.
TEST_P(PaddedExpertVolumeTest, IsCapacityOfRemoteExperts) {
  const RunLayout& layout = GetParam();
  constexpr i64 kMicrobatches = 3, kExperts = 4, kTopk = 2;
  const i64 etp = std::max<i64>(1, layout.etp), exchange = layout.ep * etp;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of("llama", dtype, kMicrobatches * kBatch * layout.dp);
    MoeConfig& moe = task.model.moe;
    moe.num_experts = kExperts, moe.router_topk = kTopk, moe.ffn_hidden_size = 24;
    moe.expert_capacity_factor = 1.25, moe.pad_expert_input_to_capacity = true;
    in_each_rank(task, layout, [&](LayoutRank&, const Meters& meters) {
      const ModelConfig& c = task.model;
      const i64 tokens = c.seq_length * kBatch, capacity = (tokens * kTopk * 5 / 4 + kExperts - 1) / kExperts,
                passes = kMicrobatches * c.num_layers;
      const i64 remote_rows = capacity * kExperts / layout.ep * (exchange - 1);
      EXPECT_EQ(meters.at("ep")[CommOp::AllToAll].bytes, passes * 4 * remote_rows * c.hidden_size * size_of(dtype));
      EXPECT_EQ(meters.at("ep")[CommOp::AllGather].bytes, passes * (exchange - 1) * kExperts * 4);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PaddedExpertVolumeTest,
                         testing::Values(RunLayout{"ep2", {.dp = 2, .ep = 2}}, RunLayout{"ep4", {.dp = 4, .ep = 4}},
                                         RunLayout{"etp2", {.dp = 2, .ep = 1, .etp = 2}},
                                         RunLayout{"ep2_etp2", {.dp = 4, .ep = 2, .etp = 2}}),
                         [](const auto& p) { return str(p.param.name); });

/// If ranks share a microbatch, padding is not sent.
TEST(SharedMicrobatchVolumeTest, PaddedExpertsReceiveOnlyRowsOfTokens) {
  const RunLayout layout{"tp2_sp_ep2", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}};
  std::vector<i64> bytes;
  for (const bool is_padded : {false, true}) {
    RunTask task = task_of("llama", DType::BF16, kBatch);
    MoeConfig& moe = task.model.moe;
    moe.num_experts = 4, moe.router_topk = 2, moe.ffn_hidden_size = 24;
    moe.expert_capacity_factor = 1.25, moe.pad_expert_input_to_capacity = is_padded;
    std::mutex mutex;
    i64 sum = 0;
    in_each_rank(task, layout, [&](LayoutRank&, const Meters& meters) {
      const std::lock_guard lock(mutex);
      sum += meters.at("ep")[CommOp::AllToAll].bytes;
    });
    bytes.push_back(sum);
  }
  EXPECT_GT(bytes[0], 0);
  EXPECT_EQ(bytes[1], bytes[0]);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineVolumeTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::ValuesIn(kPipelines)),
                         [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

}  // namespace
}  // namespace mcpp::communication_volume_test

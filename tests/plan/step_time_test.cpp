// Predicted step times in cases with a known result.
#include "plan/step/step_time.h"

#include <gtest/gtest.h>

#include "model/config/block_spec.h"
#include "model/flops.h"
#include "plan/cost/kernel_times.h"
#include "plan/utilization.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::step_time_test {
namespace {

/// Returns hardware with links of this bandwidth; with a very large one only compute takes time.
Hardware hardware_with(double link_bandwidth) {
  return test::toy_cluster(link_bandwidth, link_bandwidth);
}

Workload work_of(i64 batch) {
  return test::toy_workload(16, 2048, 16, batch);
}

double seconds(const Hardware& hardware, const Workload& work, const Layout& layout) {
  const KernelTraits program;
  return step_time({hardware, program, work, layout}).seconds;
}

TEST(StepTimeTest, PartsAddUp) {
  const Hardware hardware = hardware_with(50);
  const Workload work = work_of(64);
  const KernelTraits program;
  for (const Layout& layout :
       {Layout{.dp = 8, .zero_stage = 3}, Layout{.tp = 4, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 1},
        Layout{.cp = 2, .pp = 4}}) {
    const StepTime t = step_time({hardware, program, work, layout});
    EXPECT_NEAR(t.seconds, t.work.total() + t.bubble + t.messages + t.data_parallel + t.optimizer + t.data, 1e-12);
    for (const double part :
         {t.work.gemms, t.work.attention, t.work.elementwise, t.bubble, t.messages, t.data_parallel, t.optimizer})
      EXPECT_GE(part, 0) << layout.describe();
    EXPECT_LE(step_time_lower_bound({hardware, program, work, layout}), t.seconds) << layout.describe();
  }
}

// Twice the ranks with free communication take half the time.
TEST(StepTimeTest, DataParallelismHalvesWork) {
  const Hardware hardware = hardware_with(1e12);
  const double one = seconds(hardware, work_of(64), {});
  const double two = seconds(hardware, work_of(64), {.dp = 2});
  EXPECT_NEAR(two / one, 0.5, 0.02);  // the update is not sharded
}

TEST(StepTimeTest, SlowLinksAddTime) {
  const Workload work = work_of(64);
  for (const Layout& layout : {Layout{.tp = 8}, Layout{.dp = 8, .zero_stage = 3}, Layout{.cp = 8}, Layout{.pp = 8}})
    EXPECT_GT(seconds(hardware_with(1), work, layout), seconds(hardware_with(100), work, layout)) << layout.describe();
}

// Kernels that see only part of the keys are less efficient, and their results have to be merged.
TEST(StepTimeTest, RingAttentionIsComputedInChunks) {
  const Hardware hardware = hardware_with(1e12);
  const Workload work = work_of(8);
  const KernelTraits program;
  const auto layer = [&](CpCommType type) {
    return layer_time({hardware, program, work, Layout{.cp = 4, .cp_comm_type = type}}, block_spec(work.model, 0))
        .forward;
  };
  const PassTime ring = layer(CpCommType::P2p), gathered = layer(CpCommType::AllGather);
  EXPECT_GT(ring.attention, 1.01 * gathered.attention);
  EXPECT_GT(ring.context_parallel, gathered.context_parallel);
  EXPECT_EQ(ring.gemms, gathered.gemms);
}

// Keys and values of a rank take k bytes, their fp32 gradients w, its queries q, as in docs/context_parallelism.md.
// Attention takes no time and does not overlap with communication.
TEST(StepTimeTest, ContextParallelVolumesMatchTable) {
  Hardware hardware = hardware_with(1);
  hardware.device.attention_attained = hardware.device.memory_attained = 1e12;
  const Workload work = work_of(8);
  const KernelTraits program;
  const double tokens = 2048 / 4, q = tokens * 2048 * 2, k = 2 * q, w = 2 * k, bandwidth = 1e9;
  const auto expect = [&](CpCommType type, i64 heads, double forward, double backward) {
    const UnitTime t =
        layer_time({hardware, program, work, {.cp = 4, .cp_comm_type = type, .cp_hierarchy = {heads, 4 / heads}}},
                   block_spec(work.model, 0));
    EXPECT_NEAR(t.forward.context_parallel * bandwidth / forward, 1, 0.005) << enum_name(type);
    EXPECT_NEAR(t.backward_input.context_parallel * bandwidth / backward, 1, 0.005) << enum_name(type);
  };
  expect(CpCommType::P2p, 1, 3 * k, 3 * (k + w));
  expect(CpCommType::AllGather, 1, 3 * k, 3 * (k + w));
  expect(CpCommType::A2a, 4, 0.75 * (k + 2 * q), 0.75 * (k + 2 * q));
  expect(CpCommType::A2aP2p, 2, 0.5 * (k + 2 * q) + k, 0.5 * (k + 2 * q) + k + w);
}

/// All microbatches but the last have a partner for their backward pass, whose computation hides an equal time of the
/// exchange.
TEST(StepTimeTest, OverlapOfExpertsHidesExchangesOfPairs) {
  const Workload work = test::toy_mixture(4, 2048, 16, 128, 8);
  const KernelTraits program;
  const auto time = [&](double bandwidth, bool overlaps, ScheduleKind schedule = ScheduleKind::OneFOneB) {
    const Hardware hardware = test::toy_cluster(bandwidth, bandwidth);
    const Layout layout{.dp = 8,
                        .ep = 8,
                        .overlap_moe_expert_parallel_comm = overlaps,
                        .schedule = schedule,
                        .chunks = row_of(schedule).min_chunks};
    return step_time({hardware, program, work, layout});
  };
  constexpr double kMicrobatches = 16;
  const StepTime serial = time(200, false), overlapped = time(200, true);
  ASSERT_GT(serial.work.expert_parallel, 0);
  EXPECT_NEAR(overlapped.work.expert_parallel / serial.work.expert_parallel, 1 / kMicrobatches, 0.05);
  EXPECT_LT(overlapped.seconds, serial.seconds);
  EXPECT_NEAR(overlapped.work.computing(), serial.work.computing(), 1e-9);
  // On slow links the computation of the partner hides only its own time.
  const StepTime slow = time(2, false), slow_overlapped = time(2, true);
  EXPECT_GT(slow_overlapped.work.expert_parallel, 0.5 * slow.work.expert_parallel);
  EXPECT_LE(slow.seconds - slow_overlapped.seconds, slow.work.computing());
  EXPECT_LT(time(200, true, ScheduleKind::ZbV).work.expert_parallel,
            time(200, false, ScheduleKind::ZbV).work.expert_parallel);
}

/// Two nodes, with slow links between them. All tokens have experts on both: alltoall sends half of the eight choices
/// of a token to the other node, hierarchical dispatch one row, and 4 bytes per choice for weights, their gradients and
/// the choices. If a token may only choose from the experts of one node, half of the tokens leave theirs.
TEST(StepTimeTest, HierarchicalDispatchSendsTokenOncePerNode) {
  constexpr i64 kTopk = 8;
  Workload work = test::toy_mixture(4, 2048, 16, 16, 256);
  work.expert_imbalance = 1;
  work.model.moe.router_topk = kTopk;
  const KernelTraits program;
  const Hardware hardware = test::toy_cluster(1e6, 1);
  const auto exchange_seconds = [&](TokenDispatcherType dispatcher) {
    const Layout layout{.dp = 16, .ep = 16, .dispatcher = dispatcher, .dispatch_node_ranks = 8};
    return step_time({hardware, program, work, layout}).work.expert_parallel;
  };
  const double rows = 4.0 * 2 * 2048, choices = 3.0 * 4 * kTopk;
  EXPECT_NEAR(exchange_seconds(TokenDispatcherType::Hierarchical) / exchange_seconds(TokenDispatcherType::AllToAll),
              (rows + choices) / (rows * kTopk / 2), 0.01);
  const double both_nodes = exchange_seconds(TokenDispatcherType::Hierarchical);
  work.model.moe.router_num_groups = 2;
  work.model.moe.router_group_topk = 1;
  EXPECT_NEAR(exchange_seconds(TokenDispatcherType::Hierarchical) / both_nodes, 0.5, 0.02);
}

/// The second hop of hierarchical dispatch, within a node, is exposed; the only hop of a single node is not. Exchanges
/// of choices and weights are small, but exposed, too.
TEST(StepTimeTest, OverlapOfExpertsHidesFirstHopOfHierarchicalDispatch) {
  const Workload work = test::toy_mixture(4, 2048, 16, 256, 16);
  const KernelTraits program;
  const auto remaining = [&](double in_node, double between_nodes, i64 node_ranks) {
    const Hardware hardware = test::toy_cluster(in_node, between_nodes);
    Layout layout{
        .dp = 16, .ep = 16, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = node_ranks};
    const double serial = step_time({hardware, program, work, layout}).work.expert_parallel;
    layout.overlap_moe_expert_parallel_comm = true;
    return step_time({hardware, program, work, layout}).work.expert_parallel / serial;
  };
  constexpr double kMicrobatches = 16, kFast = 1e6, kSlow = 20, kMedium = 200;
  EXPECT_NEAR(remaining(kFast, kSlow, 8), 1 / kMicrobatches, 0.15);
  EXPECT_NEAR(remaining(kSlow, kFast, 8), 1, 0.05);
  EXPECT_NEAR(remaining(kMedium, kMedium, 16), 1 / kMicrobatches, 0.05);
}

/// With sequence parallelism, two of the three collectives of each half of a layer in backward overlap with its GEMMs:
/// the gather of the input with the input gradient, and the reduction of the latter with the weight gradient.
TEST(StepTimeTest, CollectivesOfLinearLayersOverlapInBackward) {
  const Workload work = work_of(8);
  KernelTraits overlapping, exposed;
  exposed.overlaps_within_layers = false;
  const auto layer = [&](double bandwidth, const KernelTraits& program, ScheduleKind schedule) {
    const Hardware hardware = hardware_with(bandwidth);
    return layer_time({hardware, program, work, {.tp = 2, .sequence_parallel = true, .schedule = schedule}},
                      block_spec(work.model, 0));
  };
  const UnitTime fast = layer(200, overlapping, ScheduleKind::OneFOneB),
                 all = layer(200, exposed, ScheduleKind::OneFOneB);
  EXPECT_NEAR(fast.backward_input.tensor_parallel / all.backward_input.tensor_parallel, 1.0 / 3, 1e-9);
  EXPECT_EQ(fast.forward.tensor_parallel, all.forward.tensor_parallel);
  // GEMMs hide no more than their own time.
  const double slow = layer(0.1, overlapping, ScheduleKind::OneFOneB).backward_input.tensor_parallel,
               slow_all = layer(0.1, exposed, ScheduleKind::OneFOneB).backward_input.tensor_parallel,
               gemms = all.total().gemms - all.forward.gemms;
  EXPECT_LT(slow, slow_all);
  EXPECT_GE(slow, slow_all - gemms);
  // A delayed weight gradient gathers its operand itself.
  EXPECT_NEAR(layer(200, overlapping, ScheduleKind::ZbH1).backward_input.tensor_parallel,
              all.backward_input.tensor_parallel, 1e-12);
}

/// With tp_comm_overlap, GEMMs of the forward pass hide its collectives except the last chunk of a sum, and the gather
/// of a row-parallel layer's gradient is hidden, too.
TEST(StepTimeTest, TensorParallelOverlapHidesCollectivesOfForward) {
  const Workload work = work_of(8);
  const KernelTraits program;
  const auto layer = [&](double bandwidth, bool overlaps, bool sequence_parallel,
                         ScheduleKind schedule = ScheduleKind::OneFOneB) {
    const Hardware hardware = hardware_with(bandwidth);
    return layer_time(
        {hardware,
         program,
         work,
         {.tp = 2, .sequence_parallel = sequence_parallel, .tp_comm_overlap = overlaps, .schedule = schedule}},
        block_spec(work.model, 0));
  };
  for (const ScheduleKind schedule : {ScheduleKind::OneFOneB, ScheduleKind::ZbH1}) {
    const UnitTime serial = layer(200, false, true, schedule), overlapped = layer(200, true, true, schedule);
    // Two gathers are hidden, and three of four chunks of two sums. Each chunk has the latency of a collective.
    EXPECT_LT(overlapped.forward.tensor_parallel, 1.0 / 4 * serial.forward.tensor_parallel);
    EXPECT_GT(overlapped.forward.tensor_parallel, 1.0 / 8 * serial.forward.tensor_parallel);
  }
  const UnitTime sums = layer(200, false, false), chunks = layer(200, true, false);
  EXPECT_LT(chunks.forward.tensor_parallel, 1.0 / 2 * sums.forward.tensor_parallel);
  EXPECT_GT(chunks.forward.tensor_parallel, 1.0 / 4 * sums.forward.tensor_parallel);
  const UnitTime serial = layer(200, false, true), overlapped = layer(200, true, true);
  EXPECT_LT(overlapped.backward_input.tensor_parallel, 0.1 * serial.backward_input.tensor_parallel);
  // GEMMs hide no more than their own time.
  const UnitTime slow_serial = layer(0.1, false, true), slow = layer(0.1, true, true);
  EXPECT_LT(slow.forward.tensor_parallel, slow_serial.forward.tensor_parallel);
  EXPECT_GE(slow.forward.tensor_parallel, slow_serial.forward.tensor_parallel - slow.forward.gemms);
}

/// Few heads leave cores idle while the last blocks of queries are computed.
TEST(StepTimeTest, AttentionOfFewHeadsIsLessEfficient) {
  const Hardware hardware = hardware_with(100);
  EXPECT_EQ(attention_efficiency(hardware, 4096, 64), attention_efficiency(hardware, 4096, 128));
  EXPECT_LT(attention_efficiency(hardware, 4096, 8), 0.8 * attention_efficiency(hardware, 4096, 64));
  EXPECT_GT(attention_efficiency(hardware, 131072, 8), 0.98);
}

// Long steps are extrapolated instead of simulated, with the same result.
TEST(StepTimeTest, LongStepsAreExtrapolatedFromShortSteps) {
  const Hardware hardware = hardware_with(50);
  for (const auto& [kind, chunks] : {std::pair<ScheduleKind, i64>{ScheduleKind::OneFOneB, 1},
                                     {ScheduleKind::Interleaved, 2},
                                     {ScheduleKind::ZbH1, 1},
                                     {ScheduleKind::ZbV, 2}}) {
    const Layout layout{.pp = 4, .schedule = kind, .chunks = chunks};
    // Up to 20 microbatches are simulated; beyond, a step is extended by repeating the time of the last 20.
    const double a = seconds(hardware, work_of(16), layout), b = seconds(hardware, work_of(20), layout),
                 c = seconds(hardware, work_of(200), layout);
    EXPECT_NEAR(c / (b + (b - a) * 45), 1, 0.01) << layout.describe();
  }
}

/// The stages of multi-token prediction and of the output divide the work, and exchange one state per prediction.
TEST(StepTimeTest, PredictionStageDividesWorkOfOutput) {
  Workload work = work_of(64);
  work.model.position_embedding_type = PositionEmbedding::Rope;
  work.model.untie_embeddings_and_output_weights = true;
  work.model.mtp_num_layers = 2;
  const KernelTraits program;
  const auto predict = [&](const Hardware& hardware, const char* stages) {
    const PredictionInput input{hardware, program, work, {.pp = 3, .stages = stages}};
    EXPECT_LE(step_time_lower_bound(input), step_time(input).seconds);
    return step_time_by_rank(input);
  };
  const Hardware fast = hardware_with(1e12);
  const auto together = predict(fast, "Et*8|t*8|mmL"), apart = predict(fast, "Et*16|mm|L");
  const auto total = [](const std::vector<StepTime>& ranks, auto PassTime::*part) {
    double sum = 0;
    for (const StepTime& rank : ranks) sum += rank.work.*part;
    return sum;
  };
  EXPECT_NEAR(total(apart, &PassTime::gemms) / total(together, &PassTime::gemms), 1, 1e-9);
  EXPECT_NEAR(total(apart, &PassTime::attention) / total(together, &PassTime::attention), 1, 1e-9);
  EXPECT_NEAR(total(apart, &PassTime::elementwise) / total(together, &PassTime::elementwise), 1, 0.02);
  EXPECT_GT(apart[1].work.attention, 0);
  EXPECT_EQ(apart[2].work.attention, 0);
  EXPECT_GT(apart[2].work.gemms, 0);
  // The first microbatch passes a message of one state and one of three, the last gradient also.
  const Hardware slow = hardware_with(0.001);
  const double state = predict(slow, "Et*8|t*8|mmL")[0].messages,
               with_predictions = predict(slow, "Et*16|mm|L")[0].messages;
  EXPECT_NEAR(with_predictions / state, 2, 0.1);
}

TEST(StepTimeTest, FullRecomputationAddsOneForward) {
  const Hardware hardware = hardware_with(1e12);
  const Workload work = work_of(8);
  const Layout none{}, full{.recompute = {.granularity = Recompute::Granularity::Full}};
  const KernelTraits program;
  const double forward = layer_time({hardware, program, work, none}, block_spec(work.model, 0)).forward.total();
  EXPECT_NEAR(seconds(hardware, work, full) - seconds(hardware, work, none), 8 * 16 * forward, 1e-9);
}

// One of the two GEMMs of attention in forward is computed a second time.
TEST(StepTimeTest, RecordingLogitsForClipAddsHalfOfForwardAttention) {
  const Hardware hardware = hardware_with(1e12);
  const Workload plain = work_of(8);
  Workload clipped = plain;
  clipped.records_logits = true;
  const KernelTraits program;
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .cp = 2}}) {
    const auto layer = [&](const Workload& work) {
      return layer_time({hardware, program, work, layout}, block_spec(work.model, 0));
    };
    const UnitTime without = layer(plain), with = layer(clipped);
    EXPECT_NEAR(with.forward.attention / without.forward.attention, 1.5, 1e-9) << layout.describe();
    EXPECT_DOUBLE_EQ(with.total().total() - with.forward.attention,
                     without.total().total() - without.forward.attention);
  }
}

// An average reads and writes 12 bytes per weight at each of its updates.
TEST(StepTimeTest, AveragedWeightsAddTheirTraffic) {
  const Hardware hardware = hardware_with(1e12);
  const KernelTraits program;
  const auto update = [&](i64 interval) {
    Workload work = work_of(8);
    work.ema_interval = interval;
    if (interval > 0) work.states.matrix_states += 1, work.states.other_states += 1;
    return kernel_times(hardware, program, work).update;
  };
  const double average = 12 / (1e9 * hardware.device.memory_attained);
  EXPECT_NEAR((update(1) - update(0)) / average, 1, 1e-9);
  EXPECT_NEAR((update(10) - update(0)) / average, 0.1, 1e-9);
}

TEST(StepTimeTest, HardwareUtilizationCountsRecomputation) {
  const Hardware hardware = hardware_with(50);
  const Workload work = work_of(8);
  const KernelTraits program;
  const auto more = [&](const Recompute& recompute) {
    const PredictionInput input{hardware, program, work, {.recompute = recompute}};
    return hardware_flops_utilization(input, 1) / model_flops_utilization(input, 1);
  };
  const double output = 6.0 * 2048 * 32000 / flops_per_token(work.model);
  EXPECT_EQ(more({}), 1);
  EXPECT_NEAR(more({.granularity = Recompute::Granularity::Full}), 1 + (1 - output) / 3, 1e-12);
  // Two GEMMs of 1024 keys on average for each of 16 layers of 2048.
  EXPECT_NEAR(more({.granularity = Recompute::Granularity::Selective, .core_attn = true}),
              1 + 16 * 4.0 * 2048 * 1024 / flops_per_token(work.model), 1e-4);
}

// Two of eight experts per token compute as much as a dense model with an MLP of twice the width.
TEST(StepTimeTest, CountsOnlyActiveExperts) {
  const Hardware hardware = hardware_with(1e12);
  Workload experts = test::toy_mixture(8, 4096, 32, 16, 8);
  experts.expert_imbalance = 1;
  Workload dense = test::toy_workload(8, 4096, 32, 16);
  dense.model.ffn_hidden_size = 2 * dense.model.ffn(0);
  EXPECT_NEAR(flops_per_token(experts.model) / flops_per_token(dense.model), 1, 0.001);
  const KernelTraits program;
  const auto step = [&](const Workload& work, i64 micro_batch_size) {
    return step_time({hardware, program, work, {.micro_batch_size = micro_batch_size}});
  };
  const StepTime sparse = step(experts, 8), all = step(dense, 8);
  EXPECT_NEAR(sparse.work.gemms / all.work.gemms, 1, 0.05);
  // An expert has a quarter of the rows. With few tokens, the sums of its weight gradients are too short to be
  // efficient.
  EXPECT_GT(step(experts, 1).work.gemms / step(dense, 1).work.gemms, 1.05);
  EXPECT_GT(sparse.optimizer, 3 * all.optimizer);  // the optimizer updates all experts
  EXPECT_EQ(sparse.work.expert_parallel, 0);
}

TEST(StepTimeTest, TokenExchangeMatchesFormula) {
  const Workload work = test::toy_mixture(8, 4096, 32, 64, 16);
  const KernelTraits program;
  const auto exchange = [&](const Hardware& hardware, const Layout& layout, double imbalance = 1) {
    Workload uneven = work;
    uneven.expert_imbalance = imbalance;
    return step_time({hardware, program, uneven, layout}).work.expert_parallel;
  };
  const Layout ep8{.dp = 8, .ep = 8};
  // Two rows of bf16 per token, 7 of 8 of which go to other ranks, dispatched and combined, in forward and backward.
  const double tokens = 8 * 2048, bytes = 2 * 4096 * 2, one_way = tokens * bytes * 7 / 8 / 100e9;
  EXPECT_NEAR(exchange(hardware_with(100), ep8) / (8 * 4 * one_way), 1, 0.05);
  EXPECT_NEAR(exchange(hardware_with(100), ep8, 1.5) / exchange(hardware_with(100), ep8), 1.5, 0.05);
  // Neighbors are in one node, 16 ranks are not.
  const Hardware nodes = test::toy_cluster(100, 10);
  EXPECT_EQ(exchange(nodes, {.dp = 16, .ep = 8}), exchange(hardware_with(100), {.dp = 16, .ep = 8}));
  EXPECT_GT(exchange(nodes, {.dp = 16, .ep = 16}), 4 * exchange(nodes, {.dp = 16, .ep = 8}));
  // If there are fewer experts on a rank, fewer weights are updated and reduced.
  const auto rest = [&](const Layout& layout) {
    const StepTime t = step_time({hardware_with(100), program, work, layout});
    return t.optimizer + t.data_parallel;
  };
  EXPECT_LT(rest(ep8), 0.5 * rest({.dp = 8}));
}

TEST(LayerTimeTest, CountsNormsOfHeads) {
  const Hardware hardware = hardware_with(100);
  Workload work = work_of(8);
  const KernelTraits program;
  const auto mixer_time = [&] {
    return layer_time({hardware, program, work, {}}, mixer_of(block_spec(work.model, 0)));
  };
  const UnitTime plain = mixer_time();
  work.model.qk_layernorm = true;
  const UnitTime normed = mixer_time();
  // Norms read and write queries and keys once, and so do copies to dense rows and back.
  const double elements = 2 * 2048 * 2048, passes = program.norm.forward + 2 * 2;
  const double gaps = 4 * hardware.gap_seconds();
  EXPECT_NEAR(
      (normed.forward.elementwise - plain.forward.elementwise - gaps) / hardware.traffic_seconds(2 * passes * elements),
      1, 1e-9);
  EXPECT_EQ(normed.forward.gemms, plain.forward.gemms);
}

TEST(ForwardMatmulsTest, ExpertsAreNotInFp8) {
  Workload work = test::toy_mixture(8, 4096, 32, 64, 16);
  work.fp8 = {.first = 0, .end = work.model.num_layers};
  Hardware hardware = hardware_with(100);
  hardware.device.fp8_peak = 600;
  const KernelTraits program;
  const std::vector<WeightMatmul> list = forward_matmuls({hardware, program, work, {.dp = 8, .ep = 8}});
  std::vector<std::pair<std::string, GemmType>> types;
  for (const WeightMatmul& matmul : list) types.emplace_back(matmul.name, matmul.type);
  using enum GemmType;
  const std::vector<std::pair<std::string, GemmType>> expected{
      {"qkv", Fp8}, {"proj", Fp8}, {"experts.fc1", Bf16}, {"experts.fc2", Bf16}, {"output", Bf16}};
  EXPECT_EQ(types, expected);
  // The busiest rank gets 1.1 times its share of two rows per token, 563 from each of 8 ranks for two experts.
  EXPECT_EQ(list[2].shape, (MatmulShape{.m = 2252, .n = 16384, .k = 4096, .batch = 2}));
}

}  // namespace
}  // namespace mcpp::step_time_test

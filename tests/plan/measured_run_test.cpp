// Comparison of a measured run with its prediction.
#include "plan/measured_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

const Layout kLayout{.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true};

std::vector<std::string> names(const std::vector<RunPart>& parts) {
  std::vector<std::string> list;
  for (const RunPart& part : parts) list.push_back(part.name);
  return list;
}

/// Returns a run on different hardware than the prediction assumes.
MeasuredRun run_on(const Hardware& hardware, const Workload& work) {
  const KernelTraits program;
  const StepTime t = step_time({hardware, program, work, kLayout});
  return {.seconds = t.seconds,
          .bubble = (t.bubble + t.messages) / t.seconds,
          .exposed_communication = (t.communication() - t.messages) / t.seconds};
}

TEST(MeasuredRunTest, NamesPartsThatExceedTolerance) {
  const Hardware hardware = test::toy_cluster(100, 10);
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const KernelTraits program;
  const StepTime predicted = step_time({hardware, program, work, kLayout});
  const auto off = [&](const MeasuredRun& run) {
    std::vector<std::string> list;
    for (const RunPart& part : compare(predicted, 1e9, run))
      if (exceeds_tolerance(part, run)) list.push_back(part.name);
    return list;
  };
  EXPECT_THAT(off(run_on(hardware, work)), testing::IsEmpty());
  EXPECT_THAT(off(run_on(test::toy_cluster(30, 3), work)), testing::Contains("exposed communication"));
  EXPECT_THAT(off(run_on(test::toy_cluster(30, 3), work)), testing::Not(testing::Contains("compute")));
  MeasuredRun large = run_on(hardware, work);
  large.peak_memory_bytes = 1.5e9;
  EXPECT_THAT(off(large), testing::ElementsAre("memory"));
  const std::vector<RunPart> details{{"decoder.layers.0.mlp", 1e-3, 2 * large.seconds},
                                     {"embedding", 1, 1.1},
                                     {"workspace", 0, 0.01e9, /*is_memory=*/true}};
  const std::string text = comparison_text(compare(predicted, 1e9, large), details, large);
  EXPECT_THAT(text, testing::HasSubstr("memory is more than 20 % off"));
  EXPECT_THAT(text, testing::ContainsRegex("decoder.layers.0.mlp .* times \\*\n"));
  EXPECT_THAT(text, testing::Not(testing::ContainsRegex("(embedding|workspace) .*\\*\n")));
}

// Compares each pipeline position, and communication by purpose.
TEST(MeasuredRunTest, ComparesStagesAndGroups) {
  const Hardware hardware = test::toy_cluster(100, 10);
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const KernelTraits program;
  const PredictedStep predicted = predict_step({hardware, program, work, kLayout}, 1e9);
  EXPECT_EQ(predicted.global_batch_size, 64);
  MeasuredRun run = run_on(hardware, work);
  EXPECT_THAT(compare_stages(predicted.stages, run), testing::IsEmpty());
  const double own = run.computing();
  run.computing_by_rank = {own, own, own, own, own, own, own, 9 * own};
  const std::vector<RunPart> stages = compare_stages(predicted.stages, run);
  ASSERT_THAT(names(stages), testing::ElementsAre("compute of pipeline rank 0", "compute of pipeline rank 1"));
  EXPECT_NEAR(stages[0].measured, own, 1e-12);
  EXPECT_NEAR(stages[1].measured, 3 * own, 1e-12);
  EXPECT_NEAR(stages[static_cast<std::size_t>(predicted.time.rank)].predicted / own, 1, 0.01);
  EXPECT_FALSE(exceeds_tolerance(stages[0], run));
  EXPECT_TRUE(exceeds_tolerance(stages[1], run));
  EXPECT_THAT(compare_groups(predicted.time, run), testing::IsEmpty());
  run.groups = {{"tp", 1}, {"tp_cp", 2}, {"dp_shard", 4}, {"model", 8}};
  const std::vector<RunPart> groups = compare_groups(predicted.time, run);
  ASSERT_THAT(names(groups), testing::ElementsAre("tensor-parallel communication", "exposed gradients and weights"));
  EXPECT_EQ(groups[0].measured, 3);
  EXPECT_EQ(groups[0].predicted, predicted.time.work.tensor_parallel);
  EXPECT_EQ(groups[1].measured, 12);
  EXPECT_EQ(tolerance_warning({.name = "compute", .predicted = 0.2, .measured = 0.31}),
            "compute is more than 20 % off: 310.0 ms of a step, predicted 200.0 ms, 55.0 %");
}

TEST(MeasuredRunTest, FittedHardwarePredictsRun) {
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const KernelTraits program;
  Hardware slow = test::toy_cluster(50, 5);
  for (double* rate : {&slow.device.bf16_attained, &slow.device.attention_attained, &slow.device.memory_attained})
    *rate *= 0.6;
  const Hardware file = test::toy_cluster(100, 10);
  const MeasuredRun run = run_on(slow, work);
  const StepTime predicted = step_time({file, program, work, kLayout});
  EXPECT_GT(run.seconds / predicted.seconds, 1.5);
  const Hardware found = scale_hardware(file, infer_speed(predicted, run));
  EXPECT_NEAR(step_time({found, program, work, kLayout}).seconds / run.seconds, 1, 0.02);
  EXPECT_NEAR(found.device.bf16_attained / slow.device.bf16_attained, 1, 0.02);
}

// Small kernels, whose time includes gaps, deviate arbitrarily. Peak and attained rates must stay consistent.
TEST(MeasuredRunTest, FittedHardwareIsValidHardwareFile) {
  Hardware file = test::toy_cluster(100, 10);
  file.device.kernel_gap = 50;
  const Workload work = test::toy_workload(4, 128, 4, 64);
  const KernelTraits program;
  const PredictionInput input{file, program, work, {.micro_batch_size = 1}};
  const StepTime predicted = step_time(input);
  for (const double factor : {0.1, 0.9, 3.0}) {
    const MeasuredRun run{.seconds = predicted.seconds / factor};
    const RunSpeed speed = infer_speed(predicted, run);
    EXPECT_NEAR(speed.compute, factor, 1e-9);
    EXPECT_EQ(speed.links, 1);
    const Hardware found = scale_hardware(file, speed);
    EXPECT_THAT(found.conflicts(), testing::IsEmpty());
    EXPECT_NEAR(step_time({found, program, work, input.layout}).seconds / run.seconds, 1, 0.02) << factor;
  }
}

// Ranks that wait for each other count the wait as communication. Without data to send, it says nothing about links.
TEST(MeasuredRunTest, FitsLinksOnlyWhereStepUsesThem) {
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const KernelTraits program;
  const Layout pipeline{.pp = 2};
  const StepTime predicted = step_time({test::toy_cluster(100, 10), program, work, pipeline});
  MeasuredRun run{.seconds = 2 * predicted.seconds, .bubble = 0.1, .exposed_communication = 0.2};
  EXPECT_EQ(infer_speed(predicted, run).links, 1);
  const Layout tensors{.tp = 2};
  const StepTime of_tensors = step_time({test::toy_cluster(100, 10), program, work, tensors});
  run = {.seconds = of_tensors.seconds, .exposed_communication = 2 * of_tensors.communication() / of_tensors.seconds};
  EXPECT_NEAR(infer_speed(of_tensors, run).links, 0.5, 1e-9);
}

// Passes consist of half layers, embedding and output only. A recomputed layer counts once more.
TEST(MeasuredRunTest, ModulesAddUpToStep) {
  const Hardware hardware = test::toy_cluster(100, 10);
  const Workload work = test::toy_mixture(4, 2048, 16, 8, 8);
  const KernelTraits program;
  for (const auto granularity :
       {Recompute::Granularity::None, Recompute::Granularity::Selective, Recompute::Granularity::Full}) {
    const PredictionInput input{
        hardware,
        program,
        work,
        {.tp = 2, .sequence_parallel = true, .recompute = {.granularity = granularity, .mlp_act = true}}};
    MeasuredRun run{.seconds = 1};
    for (const char* module : {"embedding", "output_layer", "decoder.layers.0.self_attention", "decoder.layers.0.mlp",
                               "decoder.layers.3.mlp", "unknown"})
      run.modules[module] = 1;
    for (int layer = 0; layer < 4; ++layer)
      for (const char* half : {".self_attention", ".mlp"}) run.modules[str("decoder.layers.", layer, half)] = 1;
    const std::vector<RunPart> parts = compare_modules(input, run);
    EXPECT_EQ(parts.size(), 10);
    double sum = 0;
    for (const RunPart& part : parts) sum += part.predicted;
    EXPECT_NEAR(sum / step_time(input).work.total(), 1, 1e-9);
  }
}

TEST(MeasuredRunTest, ComparesMemoryClassesOfMaximumRank) {
  const std::vector<MemoryEstimate> ranks{{.params = 3, .activations = 9}, {.params = 5, .activations = 2}};
  const MeasuredRun run{.peak_by_class = {{"parameters", 5}, {"activations", 10}, {"workspace", 1}, {"other", 0}}};
  const std::vector<RunPart> parts = compare_memory({}, ranks, run);
  ASSERT_THAT(names(parts), testing::ElementsAre("parameters", "activations", "workspace"));
  EXPECT_EQ(parts[0].predicted, 5);
  EXPECT_EQ(parts[1].predicted, 9);
  EXPECT_EQ(parts[1].measured, 10);
  EXPECT_EQ(parts[2].predicted, 0);  // the workspace of kernels is not predicted
}

// Modules come in forward order, each with the traced classes, as the mean of the ranks that have it.
TEST(MeasuredRunTest, ComparesMemoryByModule) {
  const std::vector<MemoryByModule> ranks{
      {{"embedding", {.params = 8, .activations = 4}}, {"decoder.layers.2", {.params = 2, .activations = 50}}},
      {{"embedding", {.params = 8}}, {"decoder.layers.10", {.params = 2}}, {"output_layer", {.params = 1}}}};
  const MeasuredRun run{.peak_memory_bytes = 100,
                        .module_bytes = {{"embedding", {{"parameters", 5}, {"activations", 4}, {"unknown", 1}}},
                                         {"decoder.layers.10", {{"parameters", 2}}},
                                         {"decoder.layers.2", {{"parameters", 2}, {"activations", 90}}},
                                         {"decoder.layers.99", {{"parameters", 2}}},
                                         {"output_layer", {}}}};
  const std::vector<ModuleParts> modules = compare_module_memory(ranks, run);
  std::vector<std::string> order;
  for (const ModuleParts& module : modules) order.push_back(module.name);
  ASSERT_THAT(order, testing::ElementsAre("embedding", "decoder.layers.2", "decoder.layers.10", "output_layer"));
  ASSERT_THAT(names(modules[0].classes), testing::ElementsAre("parameters", "activations"));
  EXPECT_EQ(modules[0].classes[0].predicted, 8);
  EXPECT_EQ(modules[0].classes[0].measured, 5);
  EXPECT_EQ(modules[0].classes[1].predicted, 4);  // the copy at the output has no activations
  EXPECT_TRUE(modules[3].classes.empty());
  const std::string text = module_memory_text(modules, run);
  EXPECT_THAT(text, testing::ContainsRegex("\n  decoder.layers.2 .* 50 B +90 B \\*\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\n  embedding .* 8 B +5 B \\*"));
  EXPECT_THAT(text, testing::ContainsRegex("\n  decoder.layers.10 .* 2 B +2 B\n"));
  EXPECT_EQ(module_memory_text(compare_module_memory(ranks, {}), run), "");
}

// Offloaded bytes are compared as well, each kind in its tier according to the layout.
TEST(MeasuredRunTest, ComparesOffloadedMemory) {
  const std::vector<MemoryEstimate> ranks{
      {.offloaded = 100, .offloaded_params = 20, .offloaded_activations = 3, .activations_on_disk = 4096}};
  const MeasuredRun run{.peak_by_class = {{"other", 0}}, .in_host_bytes = 130, .on_disk_bytes = 5000};
  Layout layout{
      .states_tier = OffloadTier::Host, .params_tier = OffloadTier::Host, .activations_tier = OffloadTier::File};
  std::vector<RunPart> parts = compare_memory(layout, ranks, run);
  ASSERT_THAT(names(parts), testing::ElementsAre("kept in host memory", "kept on disk"));
  EXPECT_EQ(parts[0].predicted, 120);
  EXPECT_EQ(parts[0].measured, 130);
  EXPECT_EQ(parts[1].predicted, 4096);
  EXPECT_EQ(parts[1].measured, 5000);
  layout = {.activations_tier = OffloadTier::Host};
  parts = compare_memory(layout, ranks, run);
  EXPECT_EQ(parts[0].predicted, 3);
  EXPECT_EQ(parts[1].predicted, 0);
}

}  // namespace
}  // namespace mcpp

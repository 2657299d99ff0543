// Settings that CUDA graphs do not support are all reported together, before the run starts.
#include <gmock/gmock.h>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Config config_with_graphs() {
  Config config;
  config.model.vocab_size = 64;
  config.training.global_batch_size = 8;
  config.training.train_iters = 10;
  config.device.device = DeviceType::Cuda;
  config.device.cuda_graph_impl = CudaGraphImpl::Local;
  return config;
}

TEST(CudaGraphConfigTest, AcceptsDataParallelismRecomputationAndOffloadedStates) {
  Config config = config_with_graphs();
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.parallel.zero_stage = 1;
  config.optimizer.offload = OffloadTier::Host;
  config.optimizer.qk_clip = true;
  config.training.recompute_granularity = RecomputeGranularity::Full;
  config.training.precision = Precision::Fp16;
  config.device.cuda_graph_warmup_steps = 1;
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(CudaGraphConfigTest, NamesAllConflicts) {
  Config config = config_with_graphs();
  config.parallel.tp = 2;
  config.parallel.cp = 4;
  config.parallel.pp = 3;
  config.parallel.chunks = 5;
  config.parallel.zero_stage = 2;
  config.model.moe.num_experts = 12;
  config.parallel.ep = 3;
  config.parallel.etp = 2;
  config.training.precision = Precision::Bf16;
  config.training.fp8 = Fp8::Hybrid;
  config.training.offload_activations = OffloadTier::Host;
  config.device.gemm_tuning = GemmTuning::Time;
  config.device.gemm_tuning_file = "gemms";
  std::vector<std::string> found;
  for (const std::string& error : config.conflicts())
    if (error.starts_with("device.cuda_graph_impl")) found.push_back(error);
  const auto error = [](const char* value, const char* remedy) {
    return AllOf(StartsWith(std::string("device.cuda_graph_impl: ") + value + ", but "), HasSubstr(remedy),
                 EndsWith(", or remove cuda_graph_impl"));
  };
  EXPECT_THAT(found, ElementsAre(error("parallel.tensor_model_parallel_size is 2", "set it to 1"),
                                 error("parallel.context_parallel_size is 4", "set it to 1"),
                                 error("parallel.pipeline_model_parallel_size is 3", "set it to 1"),
                                 error("parallel.num_virtual_stages_per_pipeline_rank is 5", "set it to 1"),
                                 error("parallel.zero_stage is 2", "set it to 0 or 1"),
                                 error("model.moe_pad_expert_input_to_capacity is false", "set it to true"),
                                 error("parallel.expert_model_parallel_size is 3", "set it to 1"),
                                 error("parallel.expert_tensor_parallel_size is 2", "set it to 1"),
                                 error("training.fp8 is hybrid", "remove it"),
                                 error("training.offload_activations is host", "remove it"),
                                 error("device.gemm_tuning is time", "use its gemm_tuning_file")));
}

TEST(CudaGraphConfigTest, AcceptsPaddedExpertsOfOneRank) {
  Config config = config_with_graphs();
  config.model.moe.num_experts = 4;
  config.model.moe.expert_capacity_factor = 1;
  EXPECT_THAT(config.conflicts(),
              ElementsAre(StartsWith("device.cuda_graph_impl: model.moe_pad_expert_input_to_capacity is false")));
  config.model.moe.pad_expert_input_to_capacity = true;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.parallel.zero_stage = 1;
  config.model.moe.router_enable_expert_bias = true;
  config.model.moe.router_score_function = RouterScore::Sigmoid;
  config.model.moe.router_load_balancing_type = LoadBalancing::GlobalAuxLoss;
  config.model.moe.aux_loss_coeff = 0.01;
  config.model.moe.input_jitter_eps = 0.01;
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(CudaGraphConfigTest, RejectsLowPrecisionTables) {
  Config config = config_with_graphs();
  config.training.precision = Precision::Bf16;
  config.training.low_precision = {{.modules = OneOrList<std::string>("*.linear_fc1"), .recipe = GemmRecipe::Mxfp8}};
  EXPECT_THAT(config.conflicts(), ElementsAre(StartsWith("device.cuda_graph_impl: training.low_precision is set")));
}

TEST(CudaGraphConfigTest, RejectsUnusedKeys) {
  Config config = config_with_graphs();
  config.device.device = DeviceType::Cpu;
  EXPECT_THAT(config.conflicts(), ElementsAre(StartsWith("device.cuda_graph_impl: only read when device is \"cuda\"")));
  config = config_with_graphs();
  config.device.cuda_graph_impl = CudaGraphImpl::None;
  config.device.cuda_graph_warmup_steps = 1;
  EXPECT_THAT(config.conflicts(), ElementsAre(StartsWith("device.cuda_graph_warmup_steps: only read when")));
}

/// Returns the error of an option; empty if there is none.
std::string error_of_option(const std::string& option) {
  return test::error_of([&] {
    parse_config("[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n[device]\ndevice = \"cuda\"\n", "run.toml",
                 {{option}});
  });
}

TEST(CudaGraphConfigTest, ReportsUnknownValuesWithAlternatives) {
  EXPECT_THAT(error_of_option("--device.cuda_graph_impl=full_iteration"), AllOf(HasSubstr("none"), HasSubstr("local")));
  EXPECT_THAT(error_of_option("--device.cuda_graph_impl=transformer_engine"), HasSubstr("local"));
  for (const char* steps : {"0", "-1", "1001", "1.5"})
    EXPECT_THAT(error_of_option(str("--device.cuda_graph_warmup_steps=", steps)), HasSubstr("cuda_graph_warmup_steps"));
}

TEST(CudaGraphConfigTest, RecognizesArgumentsOfMegatronCore) {
  EXPECT_THAT(error_of_option("--enable_cuda_graph"), HasSubstr("did you mean --device.cuda_graph_impl?"));
  EXPECT_THAT(error_of_option("--cuda_graph_scope=attn"), HasSubstr("of the whole model; remove it"));
}

/// The arena of recorded passes is at least as large as the peak of activations of a run without graphs.
TEST(CudaGraphConfigTest, MemoryEstimateIncludesArena) {
  Config config = config_with_graphs(), eager = config;
  eager.device.cuda_graph_impl = CudaGraphImpl::None;
  const MemoryEstimate with = estimate_memory_by_stage(config, 1)[0], without = estimate_memory_by_stage(eager, 1)[0];
  EXPECT_EQ(without.recorded_passes, 0);
  EXPECT_GT(with.recorded_passes, 0);
  EXPECT_LT(with.recorded_passes, without.activations) << "blocks are reused";
  EXPECT_DOUBLE_EQ(with.total(), without.total() + with.recorded_passes);
  EXPECT_THAT(describe_run(config, 1, 1), HasSubstr("CUDA graphs"));
}

}  // namespace
}  // namespace mcpp

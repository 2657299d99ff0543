// Options that are incompatible with fused GELU are reported before anything starts, all together.
#include <gmock/gmock.h>

#include "megatron_cpp/config/config.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

Config config_with_epilogue() {
  Config config;
  config.model.vocab_size = 64;
  config.training.global_batch_size = 8;
  config.training.train_iters = 10;
  config.training.precision = Precision::Bf16;
  config.device.device = DeviceType::Cuda;
  config.device.gelu_epilogue = true;
  return config;
}

TEST(GeluEpilogueConfigTest, AcceptsTanhGeluInLowPrecision) {
  Config config = config_with_epilogue();
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.training.precision = Precision::Fp16;
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(GeluEpilogueConfigTest, NamesAllConflicts) {
  Config config = config_with_epilogue();
  config.training.precision = Precision::Fp32;
  config.model.activation_func = ActivationFunction::GeluErf;
  config.model.ffn_hidden_size = 1028;
  config.training.recompute_granularity = RecomputeGranularity::Selective;
  config.training.recompute_modules = {"mlp_act"};
  EXPECT_THAT(config.conflicts(),
              ElementsAre(StartsWith("device.gelu_epilogue: requires model.activation_func \"gelu\", not \"gelu_erf\""),
                          StartsWith("device.gelu_epilogue: requires training.precision \"bf16\" or \"fp16\""),
                          StartsWith("device.gelu_epilogue: saves the output of GELU"),
                          StartsWith("device.gelu_epilogue: model.ffn_hidden_size per rank is 1028")));
}

TEST(GeluEpilogueConfigTest, RejectsFp8) {
  Config config = config_with_epilogue();
  config.training.fp8 = Fp8::E4m3;
  EXPECT_THAT(config.conflicts(), ElementsAre(StartsWith("device.gelu_epilogue: fp8 GEMMs have no epilogues")));
}

}  // namespace
}  // namespace mcpp

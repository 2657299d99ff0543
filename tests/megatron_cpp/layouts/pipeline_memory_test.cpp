// Peak memory of activations of a pipeline rank.
#include <gtest/gtest.h>

#include "model/memory.h"
#include "tests/support/layouts/memory_run.h"

namespace mcpp::pipeline_memory_test {
namespace {

using test::peaks;
using test::RunLayout;

/// With 1F1B on p ranks, the first has at most p microbatches in flight, independently of the batch size (Narayanan et
/// al. 2021). From the second microbatch on, a gradient arrives during another backward pass.
class PipelineMemoryTest : public testing::TestWithParam<std::tuple<const char*, DType, int>> {};

TEST_P(PipelineMemoryTest, FirstRankHoldsAtMostOneMicrobatchPerRank) {
  const auto& [name, dtype, ranks] = GetParam();
  const RunLayout layout{{.pp = ranks}};
  const ModelConfig model = test::memory_model(name);
  const StageContents first{
      .first_layer = 0, .end_layer = model.num_layers / ranks, .has_embedding = true, .has_output = false};
  const i64 kept = stage_activations(model, {.dtype = dtype, .micro_batch_size = 2}, first).saved;
  const i64 message = model.seq_length * 2 * model.hidden_size * size_of(dtype);
  const auto peak = [&, name = name, dtype = dtype](i64 microbatches) {
    const i64 tokens_and_targets = microbatches * 2 * model.seq_length * 2 * 4;
    const MemoryTable table = peaks(test::memory_task(name, dtype, 2 * microbatches), layout)[0];
    return table.by_class[static_cast<std::size_t>(MemoryClass::Activations)].peak - tokens_and_targets;
  };
  const i64 one = peak(1);
  for (int m = 2; m <= ranks; ++m) EXPECT_EQ(peak(m), one + (m - 1) * kept + message) << m << " microbatches";
  EXPECT_EQ(peak(ranks + 1), peak(ranks));
  EXPECT_EQ(peak(3 * ranks), peak(ranks));
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineMemoryTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values(DType::F32, DType::BF16),
                                          testing::Values(2, 4)));

}  // namespace
}  // namespace mcpp::pipeline_memory_test

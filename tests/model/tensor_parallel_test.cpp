// Whole models sharded over ranks, compared with the same model on one rank, in fp64.
#include <gtest/gtest.h>

#include <map>

#include "comm/local.h"
#include "comm/metered.h"
#include "model/gpt_model.h"
#include "model/layers/kv_cache.h"
#include "parallel/tp/mappings.h"
#include "tests/support/boxes.h"
#include "tests/support/tiny_model.h"

namespace mcpp::tensor_parallel_test {
namespace {

using test::Numbers;
using test::TinyModel;

constexpr double kTolerance = 1e-10;

struct Case {
  const char* name;
  ModelConfig config;
};

std::vector<Case> cases() {
  ModelConfig gpt2 = test::tiny_gpt2();
  gpt2.num_layers = 2;
  gpt2.hidden_size = 32;
  gpt2.num_attention_heads = 8;
  gpt2.seq_length = 12;
  ModelConfig llama = test::tiny_llama();
  llama.num_layers = 2;
  llama.num_attention_heads = 8;
  llama.num_query_groups = 4;
  llama.seq_length = 12;
  ModelConfig grouped = llama, multi_query = llama, biased = gpt2;
  grouped.num_query_groups = 2;
  multi_query.num_query_groups = 1;
  multi_query.add_qkv_bias = true;
  multi_query.untie_embeddings_and_output_weights = false;
  biased.num_query_groups = 1;
  biased.position_embedding_type = PositionEmbedding::None;
  biased.activation_func = ActivationFunction::SquaredReLU;
  ModelConfig unbiased = gpt2;
  unbiased.add_bias_linear = false;
  std::vector<Case> all{{"gpt2", gpt2},   {"gpt2_without_biases", unbiased}, {"gpt2_1_group", biased},
                        {"llama", llama}, {"llama_2_groups", grouped},       {"llama_1_group", multi_query}};
  for (auto [name, config] : test::tiny_variants()) {
    if (config.moe.num_experts > 0) continue;  // TinyModel has no groups of ranks with the same experts
    test::set_num_layers(config, 2);
    config.num_attention_heads = 8;
    config.seq_length = 12;
    // A constant added to all keys has no effect unless they are rotated: its gradient would consist of rounding
    // errors.
    if (config.qk_layernorm) config.position_embedding_type = PositionEmbedding::Rope;
    all.push_back({name, config});
  }
  return all;
}

ModelConfig with_dropout(ModelConfig config) {
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.1;
  return config;
}

/// Fills all parameters, including biases and norms, with random values and makes a batch, of documents if `is_packed`.
void prepare(TinyModel& m, bool is_packed = false) {
  m.model.visit([](Param& param, int) {
    param.init = Init::Normal;
    param.init_std = param.name.find("norm") == std::string::npos ? 0.2 : 1;
    initialize(param, 11);
  });
  m.memory->publish();
  m.make_batch(2);
  if (is_packed) m.make_documents({{5, 4, 3}, {1, 11}});
}

/// Returns the gradients on one rank by name.
std::map<std::string, Numbers> full_gradients(TinyModel& m) {
  std::map<std::string, Numbers> result;
  m.model.visit([&](Param& param, int) { result[param.name] = test::to_doubles(param.main_grad); });
  return result;
}

/// Returns the gradients of the parameters of this rank, in order.
std::vector<Numbers> own_gradients(TinyModel& m) {
  std::vector<Numbers> result;
  m.model.visit([&](Param& param, int) { result.push_back(test::to_doubles(param.main_grad)); });
  return result;
}

class TensorParallelTest : public testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  const ModelConfig& config() const { return std::get<0>(GetParam()).config; }
  int ranks() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelTest,
                         testing::Combine(testing::ValuesIn(cases()), testing::Values(2, 4)),
                         [](const auto& p) { return str(std::get<0>(p.param).name, "_tp", std::get<1>(p.param)); });

TEST_P(TensorParallelTest, LossAndGradientsMatchSingleRank) {
  for (const ModelConfig& model : {config(), with_dropout(config())}) {
    const bool is_packed = model.hidden_dropout > 0;
    TinyModel single_rank(model, DType::F64);
    prepare(single_rank, is_packed);
    const double loss = single_rank.step();
    const auto expected = full_gradients(single_rank);
    for (const bool sequence_parallel : {false, true}) {
      run_local_ranks(ranks(), [&](Communicator& tp, int) {
        TinyModel m(model, DType::F64, {}, 1, &tp, sequence_parallel);
        prepare(m, is_packed);
        EXPECT_NEAR(m.step() / loss, 1, kTolerance);
        m.model.visit([&](Param& param, int) {
          test::expect_part(param.main_grad, expected.at(param.name), param.box, kTolerance,
                            param.name + (sequence_parallel ? " with sequence parallelism" : ""));
        });
      });
    }
  }
}

/// Compares the number of ranks that hold each element, as given by the placement, with an actual count.
TEST_P(TensorParallelTest, BoxesAndCopiesCoverEveryParameter) {
  TinyModel single_rank(config(), DType::F64);
  const auto tensors = full_gradients(single_rank);
  run_local_ranks(ranks(), [&](Communicator& tp, int) {
    TinyModel m(config(), DType::F64, {}, 1, &tp);
    std::map<std::string, double> held;
    m.model.visit([&](Param& param, int) {
      held[param.name] += static_cast<double>(param.numel()) / param.placement.tp.copies(tp.size());
    });
    EXPECT_EQ(held.size(), tensors.size());
    for (auto& [name, count] : held) {
      Tensor sum = test::tensor_of({count}, {1}, DType::F64, m.device);
      tp.all_reduce(sum, ReduceOp::Sum).wait();
      EXPECT_EQ(sum.data<double>()[0], static_cast<double>(tensors.at(name).size())) << name;
    }
  });
}

TEST_P(TensorParallelTest, RecomputationAndDelayedWeightGradientsAreBitwiseIdentical) {
  using Granularity = Recompute::Granularity;
  const Recompute variants[]{
      {.granularity = Granularity::Full, .num_layers = 2},
      {.granularity = Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true}};
  for (const bool sequence_parallel : {false, true}) {
    run_local_ranks(ranks(), [&](Communicator& tp, int) {
      const ModelConfig model = with_dropout(config());
      TinyModel plain(model, DType::F32, {}, 1, &tp, sequence_parallel);
      prepare(plain);
      const double loss = plain.step();
      const std::vector<Numbers> expected = own_gradients(plain);
      EXPECT_EQ(plain.step(true), loss);
      EXPECT_EQ(own_gradients(plain), expected);
      for (const Recompute& recompute : variants) {
        for (const bool delay_wgrad_compute : {false, true}) {
          TinyModel m(model, DType::F32, recompute, 1, &tp, sequence_parallel);
          prepare(m);
          EXPECT_EQ(m.step(delay_wgrad_compute), loss);
          EXPECT_EQ(own_gradients(m), expected);
        }
      }
    });
  }
}

/// Replicated projections of multi-latent attention multiply fewer rows with sequence parallelism. In fp32, GEMMs
/// may depend on the number of rows; in fp64 they are simple loops.
TEST_P(TensorParallelTest, SequenceParallelismKeepsLossBitwiseIdentical) {
  const DType dtype = config().mla.is_used ? DType::F64 : DType::F32;
  run_local_ranks(ranks(), [&](Communicator& tp, int) {
    TinyModel off(with_dropout(config()), dtype, {}, 1, &tp, false);
    TinyModel on(with_dropout(config()), dtype, {}, 1, &tp, true);
    prepare(off), prepare(on);
    EXPECT_EQ(off.step(), on.step());
  });
}

TEST_P(TensorParallelTest, CachedGenerationMatchesLogitsOfSingleRank) {
  TinyModel single_rank(config(), DType::F64);
  prepare(single_rank);
  MicrobatchContext all = single_rank.pass(false);
  const Tensor expected = single_rank.model.logits(single_rank.tokens, all);
  const Numbers logits = test::to_doubles(expected);
  run_local_ranks(ranks(), [&](Communicator& tp, int) {
    TinyModel m(config(), DType::F64, {}, 1, &tp);
    prepare(m);
    const i64 batch = m.tokens.dim(1), length = m.tokens.dim(0);
    KvCache cache(m.model.context(), batch, length);
    for (i64 done = 0; done < length;) {
      const i64 count = done == 0 ? 5 : 1;
      MicrobatchContext p = m.pass(false);
      p.positions.first = done;
      p.kv_cache = &cache;
      const Tensor part = m.model.logits(m.tokens.slice(done, done + count), p);
      Box box = split_box(expected.shape(), 1, tp);
      box.offset[0] = done * batch;
      box.shape[0] = count * batch;
      test::expect_part(part, logits, box, kTolerance, "logits");
      done += count;
    }
  });
}

TEST_P(TensorParallelTest, LogitsOfRowsMatchThoseOfSingleRank) {
  TinyModel single_rank(config(), DType::F64);
  prepare(single_rank);
  MicrobatchContext all = single_rank.pass(false);
  const Tensor expected = single_rank.model.logits(single_rank.tokens, all);
  const Numbers logits = test::to_doubles(expected);
  run_local_ranks(ranks(), [&](Communicator& tp, int) {
    for (const bool sequence_parallel : {false, true}) {
      TinyModel m(config(), DType::F64, {}, 1, &tp, sequence_parallel);
      prepare(m);
      MicrobatchContext pass = m.pass(false);
      const std::vector<i32> rows{2, 3, 4};
      Box box = split_box(expected.shape(), 1, tp);
      box.offset[0] = rows.front();
      box.shape[0] = std::ssize(rows);
      test::expect_part(m.model.logits_of_rows(m.tokens, integers(rows, m.model.context().device), pass), logits, box,
                        kTolerance, "logits");
    }
  });
}

/// Korthikanti et al. 2022, section 4.2: with sequence parallelism, the all-reduces of a layer become all-gathers and
/// reduce-scatters of the same volume, and the two column-parallel layers gather their input again in backward.
TEST(TensorParallelVolumeTest, MatchesFormulaPerLayer) {
  for (const bool sequence_parallel : {false, true}) {
    run_local_ranks(4, [&](Communicator& world, int) {
      ModelConfig model = cases()[0].config;
      const auto step = [&](i64 layers) {
        const auto meter = std::make_shared<CommMeter>();
        const auto tp = make_metered(world.split(0, world.rank()), meter);
        model.num_layers = layers;
        TinyModel m(model, DType::F32, {}, 1, tp.get(), sequence_parallel);
        m.make_batch(2);
        MicrobatchContext p = m.pass(true);
        m.model.loss(m.tokens, {m.targets, m.future}, 1, p);
        m.model.backward({}, p);
        return *meter;
      };
      const CommMeter three = step(3), two = step(2);
      const auto bytes = [&](CommOp op) { return three[op].bytes - two[op].bytes; };
      const i64 n = model.seq_length * 2 * model.hidden_size * 4;
      EXPECT_EQ(bytes(CommOp::AllReduce), sequence_parallel ? 0 : 4 * 2 * n * 3 / 4);
      EXPECT_EQ(bytes(CommOp::AllGather), sequence_parallel ? 6 * n * 3 / 4 : 0);
      EXPECT_EQ(bytes(CommOp::ReduceScatter), sequence_parallel ? 4 * n * 3 / 4 : 0);
    });
  }
}

/// Outside the parallel regions, a rank keeps only its part (Korthikanti et al. 2022, equation 4).
TEST(TensorParallelMemoryTest, SequenceParallelismShardsAllSavedTensors) {
  const ModelConfig model = cases()[3].config;
  const auto saved_bytes = [](TinyModel& m) {
    m.make_batch(2);
    MicrobatchContext p = m.pass(true);
    m.model.loss(m.tokens, {m.targets, m.future}, 1, p);
    return p.saved_tensors.bytes();
  };
  TinyModel single_rank(model, DType::F32);
  const i64 all = saved_bytes(single_rank), tokens = single_rank.tokens.bytes();
  run_local_ranks(4, [&](Communicator& tp, int) {
    TinyModel m(model, DType::F32, {}, 1, &tp, true);
    EXPECT_EQ(saved_bytes(m) - tokens, (all - tokens) / 4);
  });
}

TEST(TensorParallelOutputTest, HasCopyOfTiedWeightWhenEmbeddingIsOnDifferentStage) {
  const ModelConfig model = cases()[0].config;
  CpuDevice device;
  const auto self = make_self_communicator();
  const ModelContext context{.config = model, .recompute = {}, .device = device, .tp = *self};
  LanguageModelEmbedding embedding(context);
  OutputLayer shared_output(context, &embedding.word_embeddings()), separate_output(context, nullptr);
  EXPECT_EQ(shared_output.weight().own_weight(), nullptr);
  ASSERT_NE(separate_output.weight().own_weight(), nullptr);
  const Param &a = *separate_output.weight().own_weight(), &b = embedding.word_embeddings();
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.box.global, b.box.global);
  EXPECT_EQ(a.box.offset, b.box.offset);
  EXPECT_EQ(a.box.shape, b.box.shape);
  EXPECT_EQ(a.init_std, b.init_std);
}

/// The sum over microbatches is (embedding) + (output), as between two pipeline stages.
TEST(TensorParallelOutputTest, AddsSharedGradientOnceAfterBackward) {
  ModelConfig model = cases()[0].config;
  CpuDevice device;
  const auto self = make_self_communicator();
  const ModelContext context{.config = model, .dtype = DType::F32, .recompute = {}, .device = device, .tp = *self};
  LanguageModelEmbedding embedding(context);
  Param& words = embedding.word_embeddings();
  OutputLayer shared_output(context, &words), separate_output(context, nullptr);
  const auto allocate = [&](Param& param) {
    param.value = Tensor::empty(param.box.shape, DType::F32, device);
    param.main_grad = test::garbage(param.box.shape, DType::F32, device);
    initialize(param, 5);
  };
  embedding.visit(allocate), shared_output.visit(allocate), separate_output.visit(allocate);
  const Tensor targets = Tensor::zeros({model.seq_length, 2}, DType::I32, device);
  const auto microbatch = [&](OutputLayer& output, u64 seed) {
    MicrobatchContext microbatch_context;
    output.loss(test::random_tensor({model.seq_length, 2, model.hidden_size}, DType::F32, device, seed), targets,
                /*grad_scale=*/1, /*z_loss_coeff=*/0, microbatch_context);
    output.backward(microbatch_context);
  };
  for (int step = 0; step < 2; ++step) {
    embedding.visit([](Param& param) { param.clear_grad(); });
    separate_output.visit([](Param& param) { param.clear_grad(); });
    for (const u64 seed : {1, 2, 3}) microbatch(shared_output, seed), microbatch(separate_output, seed);
    EXPECT_FALSE(words.has_grad());
    shared_output.weight().add_shared_gradient();
    EXPECT_TRUE(test::same_bits(words.main_grad, separate_output.weight().own_weight()->main_grad));
    shared_output.weight().add_shared_gradient();  // nothing is left to add
    EXPECT_TRUE(test::same_bits(words.main_grad, separate_output.weight().own_weight()->main_grad));
  }
  Numbers twice = test::to_doubles(words.main_grad);
  for (double& x : twice) x *= 2;
  separate_output.visit([](Param& param) { param.clear_grad(); });
  for (const u64 seed : {1, 2, 3}) microbatch(shared_output, seed);
  shared_output.weight().add_shared_gradient();  // added to the gradient of the embedding's backward
  EXPECT_EQ(test::to_doubles(words.main_grad), twice);
}

}  // namespace
}  // namespace mcpp::tensor_parallel_test

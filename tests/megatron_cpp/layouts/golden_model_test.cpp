// Full models compared with PyTorch and transformers in double precision (tests/golden/gpt2, llama, mixtral, or models
// of the same form and any size in test::golden_folder()): logits, loss, every gradient, and twelve steps of AdamW with
// warm-up, cosine decay, weight decay and clipping.
#include "tests/support/layouts/golden_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "optimizer/lr_schedule.h"
#include "tests/support/gpu.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/readers/hdf5_file.h"
#include "tests/support/tensors.h"

namespace mcpp {
namespace {

using test::Numbers;

using test::by_module_name, test::distance, test::Distance, test::golden, test::golden_optimizer, test::GoldenModel,
    test::kBatch, test::kSteps, test::relative_error, test::Trajectory;

/// Returns the shape of a parameter among imported weights.
Shape shape_of(ShardSource& weights, const std::string& param) {
  for (const ShardSpec& spec : weights.shards()) {
    if (spec.name == "model/" + param) return spec.box.global;
  }
  return {};
}

/// Calls check(name, ours, expected) for each tensor in the group of the golden file. Both sides have the same names.
template <class Check>
void compare_all(const std::map<std::string, Numbers>& ours, const test::Hdf5File& expected, const std::string& group,
                 Check check) {
  const std::vector<std::string> names = expected.names(group);
  ASSERT_EQ(names.size(), ours.size());
  for (const std::string& name : names) {
    ASSERT_TRUE(ours.contains(name)) << name;
    check(name, ours.at(name), expected.read<double>(group + "/" + name).values);
  }
}

/// Reached errors compared with double precision. transformers computes parts of llama in fp32 in any case.
struct Limits {
  const char* model;
  DType dtype;
  double logits, loss, gradient, trained_loss, grad_norm, weights;
  DeviceType device = DeviceType::Cpu;

  std::string name() const { return test::on_device(str(model, "_", name_of(dtype)), device); }
};

std::vector<Limits> all_limits() {
  std::vector<Limits> all{{"gpt2", DType::F32, 1e-5, 1e-5, 1e-4, 1e-4, 1e-4, 1e-4},
                          {"llama", DType::F32, 1e-5, 1e-5, 1e-4, 1e-4, 1e-4, 1e-4},
                          {"gpt2", DType::F64, 1e-11, 1e-11, 1e-11, 1e-11, 1e-11, 1e-11},
                          {"llama", DType::F64, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6},
                          {"mixtral", DType::F32, 1e-5, 1e-5, 1e-4, 1e-4, 1e-4, 1e-4},
                          {"mixtral", DType::F64, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6},
                          {"gpt2", DType::BF16, 1.5e-2, 1e-3, 3e-2, 1e-3, 1e-2, 1e-2},
                          {"llama", DType::BF16, 1.5e-2, 1e-3, 3e-2, 1e-3, 1e-2, 1e-2},
                          {"gpt2", DType::F16, 2e-3, 1.3e-4, 4e-3, 1.3e-4, 1.3e-3, 1.3e-3},
                          {"llama", DType::F16, 2e-3, 1.3e-4, 4e-3, 1.3e-4, 1.3e-3, 1.3e-3}};
  const std::size_t count = test::built_with_cuda() ? all.size() : 0;  // a GPU has the same limits
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(all[i]);
    all.back().device = DeviceType::Cuda;
  }
  return all;
}

class GoldenModelTest : public testing::TestWithParam<Limits> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(GetParam().device); !why.empty()) GTEST_SKIP() << why;
  }
  static std::unique_ptr<GoldenModel> make_model() {
    return std::make_unique<GoldenModel>(GetParam().model, GetParam().dtype, test::make_device(GetParam().device));
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenModelTest, testing::ValuesIn(all_limits()),
                         [](const auto& p) { return p.param.name(); });

/// Returns the maximum loss of cosine of a vector with relative error `relative` in any direction, with a margin for
/// rounding.
double cosine_loss(double relative) {
  return relative * relative + 1e-14;
}

TEST_P(GoldenModelTest, LogitsLossAndGradientsMatchPyTorch) {
  const Limits& limits = GetParam();
  const auto model = make_model();
  const Distance logits = distance(model->logits(), model->expected.read<double>("logits").values);
  EXPECT_LE(logits.relative, limits.logits);
  EXPECT_LE(logits.largest, 3 * limits.logits);
  EXPECT_GE(logits.cosine, 1 - cosine_loss(limits.logits));

  const double loss = model->expected.read<double>("loss").values.at(0);
  const StepOutcome outcome = model->step_in_place(kBatch);
  EXPECT_LE(relative_error(outcome.loss, loss), limits.loss) << outcome.loss;
  EXPECT_EQ(outcome.tokens, model->targets());

  auto gradients = model->by_foreign_name([](Param& param) { return param.main_grad; });
  // The golden gradient is of the mean loss, ours of the summed loss.
  const double divisor = static_cast<double>(outcome.tokens) * model->grad_scale(outcome);
  for (auto& [name, values] : gradients) {
    for (double& x : values) x /= divisor;
  }
  compare_all(gradients, model->expected, "grads", [&](const std::string& name, const Numbers& a, const Numbers& b) {
    const Distance d = distance(a, b);
    EXPECT_LE(d.relative, limits.gradient) << name;
    EXPECT_GE(d.cosine, 1 - cosine_loss(limits.gradient)) << name;
  });
}

/// A key bias shifts all scores of a query equally, so its gradient is 0 up to rounding, which AdamW turns into full
/// steps. In GPT-2 it is the second third of c_attn.bias, which is excluded here.
Numbers without_key_bias(const std::string& name, Numbers values) {
  const auto third = static_cast<std::ptrdiff_t>(values.size() / 3);
  if (name.ends_with("c_attn.bias")) values.erase(values.begin() + third, values.begin() + 2 * third);
  return values;
}

TEST_P(GoldenModelTest, TwelveStepsMatchPyTorch) {
  const Limits& limits = GetParam();
  const auto model = make_model();
  const Trajectory ours = model->train(2);
  const auto expected = [&](const char* name) { return model->expected.read<double>(name).values; };
  const Numbers losses = expected("train/loss"), norms = expected("train/grad_norm"), rates = expected("train/lr");
  for (std::size_t i = 0; i < static_cast<std::size_t>(kSteps); ++i) {
    EXPECT_NEAR(ours.learning_rates[i], rates[i], 1e-15) << "step " << i;
    EXPECT_LE(relative_error(ours.losses[i], losses[i]), limits.trained_loss) << "step " << i;
    EXPECT_LE(relative_error(ours.grad_norms[i], norms[i]), limits.grad_norm) << "step " << i;
  }
  compare_all(
      ours.weights, model->expected, "train/final", [&](const std::string& name, const Numbers& a, const Numbers& b) {
        EXPECT_LE(distance(without_key_bias(name, a), without_key_bias(name, b)).relative, limits.weights) << name;
      });
}

void expect_same_bits(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  EXPECT_EQ(a.weights, b.weights);
}

TEST_P(GoldenModelTest, IsReproducible) {
  const Trajectory first = make_model()->train(2);
  expect_same_bits(make_model()->train(2), first);
}

class GoldenTrainingTest : public testing::TestWithParam<std::tuple<const char*, DeviceType>> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(device()); !why.empty()) GTEST_SKIP() << why;
  }
  static const char* name() { return std::get<0>(GetParam()); }
  static DeviceType device() { return std::get<1>(GetParam()); }
  static Trajectory train(const Recompute& recompute = {}) {
    return GoldenModel(name(), DType::F32, test::make_device(device()), recompute).train(2);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenTrainingTest,
                         testing::Combine(testing::Values("gpt2", "llama", "mixtral"),
                                          testing::ValuesIn(test::device_types())),
                         [](const auto& p) { return test::on_device(std::get<0>(p.param), std::get<1>(p.param)); });

TEST_P(GoldenTrainingTest, IsBitwiseIdenticalWithRecomputationAndThreads) {
  const Trajectory plain = train();
  using Granularity = Recompute::Granularity;
  for (const Recompute& recompute :
       {Recompute{.granularity = Granularity::Full}, Recompute{.granularity = Granularity::Full, .num_layers = 3},
        Recompute{.granularity = Granularity::Selective,
        .core_attn = true,
        .layernorm = true,
        .mlp_act = true,
        .moe_act = true}}) {
    expect_same_bits(train(recompute), plain);
  }
  if (device() != DeviceType::Cpu) return;
  for (const int threads : {2, 3})
    expect_same_bits(GoldenModel(name(), DType::F32, test::make_device(device(), threads)).train(2), plain);
}

TEST_P(GoldenTrainingTest, LossesAreIndependentOfMicrobatchSize) {
  for (const i64 micro_batch_size : {1, 4}) {
    GoldenModel model(name(), DType::F32, test::make_device(device()));
    const Trajectory ours = model.train(micro_batch_size);
    const Numbers losses = model.expected.read<double>("train/loss").values;
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_LE(relative_error(ours.losses[i], losses[i]), 1e-4) << i;
  }
}

/// Distance of twelve steps from double precision: of the losses as one vector, and of all weights.
struct TrainingError {
  double losses = 0, weights = 0;
};

TrainingError training_error(const char* name, DType dtype, DeviceType device) {
  GoldenModel model(name, dtype, test::make_device(device));
  const Trajectory ours = model.train(2);
  Numbers weights, expected;
  compare_all(ours.weights, model.expected, "train/final",
              [&](const std::string& weight, const Numbers& a, const Numbers& b) {
                const Numbers x = without_key_bias(weight, a), y = without_key_bias(weight, b);
                weights.insert(weights.end(), x.begin(), x.end());
                expected.insert(expected.end(), y.begin(), y.end());
              });
  return {.losses = distance(ours.losses, model.expected.read<double>("train/loss").values).relative,
          .weights = distance(weights, expected).relative};
}

/// Dense models only: with experts, a token that rounding routes to a different expert outweighs all rounding errors.
class GoldenPrecisionTest : public GoldenTrainingTest {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenPrecisionTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::ValuesIn(test::device_types())),
                         [](const auto& p) { return test::on_device(std::get<0>(p.param), std::get<1>(p.param)); });

TEST_P(GoldenPrecisionTest, Fp16IsMoreAccurateThanBf16) {
  const TrainingError bf16 = training_error(name(), DType::BF16, device()),
                      fp16 = training_error(name(), DType::F16, device());
  RecordProperty("bf16", str(bf16.losses, " ", bf16.weights));
  RecordProperty("fp16", str(fp16.losses, " ", fp16.weights));
  EXPECT_LE(fp16.losses, bf16.losses / 3);
  EXPECT_LE(fp16.weights, bf16.weights / 3);
}

/// Returns the layout of the layers on two stages, the first of which has the extra one of an odd number.
std::string two_stages(i64 layers) {
  const i64 second = layers / 2;
  return str("Et*", layers - second, second > 0 ? str("|t*", second, "L") : "|L");
}

/// Training settings of a golden model.
struct Recipe {
  OptimizerConfig optimizer;
  i64 steps;
  std::function<double(i64 step)> lr;
  double weight_decay;
};

/// Returns the settings of TwelveStepsMatchPyTorch.
Recipe golden_recipe() {
  const LrSchedule schedule(golden_optimizer(), {.train_iters = kSteps, .global_batch_size = kBatch});
  return {golden_optimizer(), kSteps, [schedule](i64 step) { return schedule.lr(step * kBatch); },
          golden_optimizer().weight_decay};
}

/// A golden model with its weights and samples, for the ranks of a layout.
class GoldenTask {
 public:
  GoldenTask(const char* name, const Recipe& recipe)
      : imported_(import_huggingface(golden(name), DType::F32, host_)),
        tokens_(test::Hdf5File(golden(name) / "expected.h5").read<i32>("tokens")) {
    for (std::size_t i = 0; i < imported_.weights->shards().size(); ++i)
      initial_[imported_.weights->shards()[i].name.substr(std::strlen("model/"))] =
          test::to_doubles(imported_.weights->data(i));
    task_ = {.model = imported_.model,
             .optimizer = recipe.optimizer,
             .global_batch_size = kBatch,
             .steps = recipe.steps,
             .lr = recipe.lr,
             .weight_decay = recipe.weight_decay,
             .tokens =
                 [this](i64 sample) {
                   const i64 length = tokens_.shape[2];
                   return std::vector<i32>(tokens_.values.begin() + sample * length,
                                           tokens_.values.begin() + (sample + 1) * length);
                 },
             .initial = &initial_};
  }
  GoldenTask(const GoldenTask&) = delete;
  GoldenTask& operator=(const GoldenTask&) = delete;

  Trajectory train(const test::RunLayout& layout) const {
    const test::RunResult result = run_layout(task_, staged(layout));
    Trajectory trajectory{
        .losses = result.losses, .grad_norms = result.grad_norms, .learning_rates = {}, .weights = {}};
    std::map<std::string, Tensor> ours;
    for (const auto& [param, values] : result.weights) {
      Tensor& whole = ours[param] = Tensor::empty(shape_of(*imported_.weights, param), DType::F32, host_);
      std::copy(values.begin(), values.end(), whole.data<float>());
    }
    trajectory.weights = by_module_name(imported_.model, ours);
    return trajectory;
  }

  /// Returns the logits of the first batch on each rank, [batch, seq, vocabulary].
  std::vector<Numbers> logits(const test::RunLayout& layout) const {
    std::vector<Numbers> logits_of_ranks(static_cast<std::size_t>(layout.ranks()));
    run_local_ranks(layout.ranks(), [&](Communicator& ranks, int rank) {
      test::LayoutRank self(task_, staged(layout), ranks);
      Numbers& all = logits_of_ranks[static_cast<std::size_t>(rank)];
      for (i64 sample = 0; sample < kBatch; ++sample) {
        for (i64 position = 0; position < tokens_.shape[2] - 1; ++position) {
          const Numbers row = self.next_logits(task_, sample, position);
          all.insert(all.end(), row.begin(), row.end());
        }
      }
    });
    return logits_of_ranks;
  }

 private:
  test::RunLayout staged(test::RunLayout layout) const {
    if (layout.pp == 2) layout.stages = stages_;
    return layout;
  }

  mutable CpuDevice host_;
  ImportedModel imported_;
  std::string stages_ = two_stages(imported_.model.num_layers);
  test::Hdf5Array<i32> tokens_;
  test::Weights initial_;
  test::RunTask task_;
};

const test::RunLayout kGoldenLayouts[]{
    {"tp2", {.tp = 2}}, {"pp2", {.pp = 2}}, {"dp2", {.dp = 2}}, {"tp2_pp2_dp2", {.tp = 2, .pp = 2, .dp = 2}}};

class GoldenLayoutsTest : public testing::TestWithParam<std::tuple<const char*, test::RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, GoldenLayoutsTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::ValuesIn(kGoldenLayouts)),
                         [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

const test::RunLayout kGoldenExpertLayouts[]{
    {"tp2", {.tp = 2}},
    {"tp2_sp_etp1_ep2", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}},
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep4", {.dp = 4, .ep = 4}},
    {"ep2_tp2", {.tp = 2, .dp = 2, .ep = 2}},
    {"ep2_etp2_pp2_dp2", {.tp = 2, .pp = 2, .dp = 2, .ep = 2, .etp = 2}},
    {"ep2_cp2_zero3", {.cp = 2, .dp = 2, .ep = 2, .zero_stage = 3}}};
INSTANTIATE_TEST_SUITE_P(Experts, GoldenLayoutsTest,
                         testing::Combine(testing::Values("mixtral"), testing::ValuesIn(kGoldenExpertLayouts)),
                         [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

/// The logits of each position of a text that all ranks continue together.
TEST_P(GoldenLayoutsTest, LogitsMatchTransformers) {
  const auto& [name, layout] = GetParam();
  const std::vector<Numbers> logits_of_ranks = GoldenTask(name, golden_recipe()).logits(layout);
  const Distance found =
      distance(logits_of_ranks[0], test::Hdf5File(golden(name) / "expected.h5").read<double>("logits").values);
  EXPECT_LE(found.relative, 1e-5);
  EXPECT_LE(found.largest, 3e-5);
  for (const Numbers& rank_logits : logits_of_ranks) EXPECT_EQ(rank_logits, logits_of_ranks[0]);
}

/// The weight change of one long step along the gradient is the gradient.
TEST_P(GoldenLayoutsTest, LossAndGradientsMatchPyTorch) {
  const auto& [name, layout] = GetParam();
  constexpr double kLearningRate = 1e4;  // compared with which rounding of the weights is negligible
  Recipe recipe{.optimizer = {}, .steps = 0, .lr = [](i64) { return kLearningRate; }, .weight_decay = 0};
  recipe.optimizer.optimizer = OptimizerKind::Sgd;
  recipe.optimizer.clip_grad = 0;
  const Trajectory before = GoldenTask(name, recipe).train(layout);
  recipe.steps = 1;
  const Trajectory after = GoldenTask(name, recipe).train(layout);
  const test::Hdf5File expected(golden(name) / "expected.h5");
  EXPECT_LE(relative_error(after.losses.at(0), expected.read<double>("loss").values.at(0)), 1e-5);
  std::map<std::string, Numbers> gradients = before.weights;
  for (auto& [weight, values] : gradients) {
    const Numbers& moved = after.weights.at(weight);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = (values[i] - moved[i]) / kLearningRate;
  }
  compare_all(gradients, expected, "grads", [&](const std::string& weight, const Numbers& a, const Numbers& b) {
    EXPECT_LE(distance(a, b).relative, 1e-4) << weight;
  });
}

TEST_P(GoldenLayoutsTest, TwelveStepsMatchPyTorch) {
  const auto& [name, layout] = GetParam();
  const Trajectory ours = GoldenTask(name, golden_recipe()).train(layout);
  const test::Hdf5File expected(golden(name) / "expected.h5");
  const Numbers losses = expected.read<double>("train/loss").values;
  const Numbers norms = expected.read<double>("train/grad_norm").values;
  ASSERT_EQ(ours.losses.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(relative_error(ours.losses[i], losses[i]), 1e-4) << "step " << i;
    EXPECT_LE(relative_error(ours.grad_norms[i], norms[i]), 1e-4) << "step " << i;
  }
  compare_all(ours.weights, expected, "train/final",
              [&](const std::string& weight, const Numbers& a, const Numbers& b) {
                EXPECT_LE(distance(without_key_bias(weight, a), without_key_bias(weight, b)).relative, 1e-4) << weight;
              });
}

}  // namespace
}  // namespace mcpp

// Loss and gradients with a loss mask, compared with transformers.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/gpu.h"
#include "tests/support/layouts/golden_model.h"

namespace mcpp {
namespace {

using test::Numbers;

struct MaskedCase {
  DType dtype;
  double limit;  ///< relative error; transformers computes parts of llama in fp32
  DeviceType device = DeviceType::Cpu;

  std::string name() const { return test::on_device(std::string(name_of(dtype)), device); }
};

class MaskedLossTest : public testing::TestWithParam<MaskedCase> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(GetParam().device); !why.empty()) GTEST_SKIP() << why;
  }
  static std::unique_ptr<test::GoldenModel> make_model() {
    return std::make_unique<test::GoldenModel>("llama", GetParam().dtype, test::make_device(GetParam().device));
  }
};

INSTANTIATE_TEST_SUITE_P(Types, MaskedLossTest,
                         testing::Values(MaskedCase{DType::F64, 1e-6}, MaskedCase{DType::F32, 1e-5},
                                         MaskedCase{DType::BF16, 3e-2}, MaskedCase{DType::F32, 1e-5, DeviceType::Cuda}),
                         [](const auto& p) { return p.param.name(); });

TEST_P(MaskedLossTest, MatchesTransformersOnPackedDocuments) {
  const test::Hdf5File expected(test::golden("llama") / "masked.h5");
  const double limit = GetParam().limit;
  const auto number = [&](const char* name) { return expected.read<double>(name).values.at(0); };
  const std::vector<i32> labels = expected.read<i32>("labels").values, starts = expected.read<i32>("starts").values;
  const auto model = make_model();
  const StepOutcome outcome = model->masked_step(labels, starts);
  EXPECT_EQ(outcome.tokens, std::ranges::count_if(labels, [](i32 label) { return label >= 0; }));
  EXPECT_LE(test::relative_error(outcome.loss, number("loss")), limit) << outcome.loss;
  EXPECT_LE(test::relative_error(outcome.grad_norm, number("grad_norm")), limit) << outcome.grad_norm;
  auto gradients = model->by_foreign_name([](Param& param) { return param.main_grad; });
  const double divisor = static_cast<double>(outcome.tokens) * model->grad_scale(outcome);
  const std::vector<std::string> names = expected.names("grads");
  EXPECT_EQ(names.size(), 3U);
  for (const std::string& name : names) {
    Numbers& ours = gradients.at(name);
    for (double& x : ours) x /= divisor;
    EXPECT_LE(test::distance(ours, expected.read<double>("grads/" + name).values).relative, 3 * limit) << name;
  }
}

TEST_P(MaskedLossTest, BatchWithoutTargetsHasNoLossAndNoGradient) {
  const auto model = make_model();
  const std::vector<i32> labels(static_cast<std::size_t>(model->targets()), -1), starts(labels.size(), 0);
  const StepOutcome outcome = model->masked_step(labels, starts);
  EXPECT_EQ(outcome.loss, 0);
  EXPECT_EQ(outcome.grad_norm, 0);
  EXPECT_EQ(outcome.tokens, 0);
  EXPECT_FALSE(outcome.is_skipped);
  EXPECT_EQ(outcome.status, StepStatus::Fine);
}

}  // namespace
}  // namespace mcpp

// Tests of ops on the CPU: every element type, at every instruction level that this machine has, with one, two and
// three threads that must give the same bits.
#pragma once
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <array>
#include <tuple>
#include <vector>

#include "tensor/ops.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

class CpuOps : public testing::TestWithParam<std::tuple<DType, i64>> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<1>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  DType dtype() const { return std::get<0>(GetParam()); }
  /// The type of statistics and main gradients.
  DType wide() const { return dtype() == DType::F64 ? DType::F64 : DType::F32; }

  Numbers normals(i64 count, u64 seed, double scale = 1) const { return test::normals(count, seed, dtype(), scale); }

  /// f(device) -> std::vector<Tensor>, the same bits for any number of threads.
  template <class F>
  std::vector<Tensor> run(F&& f) {
    const std::vector<Tensor> outputs = f(devices_[0]);
    for (std::size_t i = 1; i < devices_.size(); ++i) {
      const std::vector<Tensor> others = f(devices_[i]);
      for (std::size_t k = 0; k < outputs.size(); ++k)
        EXPECT_TRUE(same_bits(outputs[k], others[k])) << "output " << k << ", " << devices_[i].threads() << " threads";
    }
    return outputs;
  }

 private:
  std::array<CpuDevice, 3> devices_{CpuDevice({.threads = 1}), CpuDevice({.threads = 2}), CpuDevice({.threads = 3})};
};

inline std::string cpu_ops_name(const testing::TestParamInfo<std::tuple<DType, i64>>& info) {
  return str(name_of(std::get<0>(info.param)), "_", hwy::TargetName(std::get<1>(info.param)));
}

/// For each file's own fixture: INSTANTIATE_TEST_SUITE_P(Types, NormOps, every_type(), cpu_ops_name).
inline auto every_type() {
  return testing::Combine(testing::Values(DType::F32, DType::BF16, DType::F16, DType::F64),
                          testing::ValuesIn(hwy::SupportedAndGeneratedTargets()));
}

/// Rows and columns that meet every tail, more than one piece of rows, and nothing at all.
struct Size {
  i64 rows, columns;
};
inline const std::vector<Size> kSizes{{1, 1},    {3, 3},     {5, 17}, {17, 64},   {64, 100},
                                      {7, 1023}, {130, 259}, {0, 16}, {2, 20000}, {700, 48}};

}  // namespace mcpp::test

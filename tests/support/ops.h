// Fixture for tests of ops with every element type on every available device: at each instruction level of the CPU with
// one, two and three threads, whose results must be bitwise identical, and on a GPU, where two runs must be bitwise
// identical.
#pragma once
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <memory>
#include <tuple>
#include <vector>

#include "tensor/ops/ops.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

/// Device on which ops run, and the alignment of their tensors.
struct OpsTarget {
  DeviceType device = DeviceType::Cpu;
  i64 cpu_level = 0;  ///< Highway target
  i64 first = 1;      ///< first element of the buffer used by a tensor, as in tensor_of()

  friend void PrintTo(const OpsTarget& target, std::ostream* out) { *out << target.name(); }
  std::string name() const {
    if (device == DeviceType::Cuda) return first == 0 ? "cuda_aligned" : "cuda";
    return hwy::TargetName(cpu_level);
  }
};

/// Returns every instruction level, and in programs with GPU support the GPU: once with unaligned tensors, and once
/// with aligned ones, for which different kernels and libraries are used.
inline std::vector<OpsTarget> all_targets() {
  std::vector<OpsTarget> targets;
  for (const i64 level : hwy::SupportedAndGeneratedTargets()) targets.push_back({.cpu_level = level});
  if (built_with_cuda()) {
    for (const i64 first : {1, 0}) targets.push_back({.device = DeviceType::Cuda, .first = first});
  }
  return targets;
}

class Ops : public testing::TestWithParam<std::tuple<DType, OpsTarget>> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(target().device); !why.empty()) GTEST_SKIP() << why;
    if (target().device == DeviceType::Cuda) return devices_.push_back(make_gpu());
    hwy::SetSupportedTargetsForTest(target().cpu_level);
    for (const int threads : {1, 2, 3}) devices_.push_back(std::make_unique<CpuDevice>(CpuOptions{.threads = threads}));
  }
  void TearDown() override {
    if (target().device == DeviceType::Cpu) hwy::SetSupportedTargetsForTest(0);
  }

  DType dtype() const { return std::get<0>(GetParam()); }
  /// Returns the type of statistics and main gradients.
  DType accumulate_dtype() const { return dtype() == DType::F64 ? DType::F64 : DType::F32; }
  const OpsTarget& target() const { return std::get<1>(GetParam()); }
  /// Returns a device for checks that run only once.
  Device& any_device() { return *devices_.back(); }

  Numbers normals(i64 count, u64 seed, double scale = 1) const { return test::normals(count, seed, dtype(), scale); }

  // Call the functions of tests/support/tensors.h with the alignment of the target.
  Tensor tensor_of(const Numbers& x, const Shape& shape, DType t, Device& device) const {
    return test::tensor_of(x, shape, t, device, target().first);
  }
  Tensor garbage(const Shape& shape, DType t, Device& device) const {
    return test::garbage(shape, t, device, target().first);
  }

  /// Runs f(device) -> std::vector<Tensor>, and checks that results are bitwise identical for any number of threads and
  /// in every run.
  template <class F>
  std::vector<Tensor> run(F&& f) {
    const std::vector<Tensor> outputs = f(*devices_.front());
    for (std::size_t i = 1; i < std::max<std::size_t>(2, devices_.size()); ++i) {
      const std::vector<Tensor> others = f(*devices_[std::min(i, devices_.size() - 1)]);
      for (std::size_t k = 0; k < outputs.size(); ++k)
        EXPECT_TRUE(same_bits(outputs[k], others[k]))
            << "output " << k << ", run " << i + 1 << " on " << target().name();
    }
    return outputs;
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;  // CPU devices with increasing thread counts, or one GPU
};

inline std::string ops_name(const testing::TestParamInfo<std::tuple<DType, OpsTarget>>& info) {
  return str(name_of(std::get<0>(info.param)), "_", std::get<1>(info.param).name());
}

/// Parameters for the fixture of each file: INSTANTIATE_TEST_SUITE_P(Types, NormOpsTest, every_type(), ops_name).
inline auto every_type() {
  return testing::Combine(testing::Values(DType::F32, DType::BF16, DType::F16, DType::F64),
                          testing::ValuesIn(all_targets()));
}

/// Rows and columns that cover every tail, more than one block of rows, and empty tensors.
struct Size {
  i64 rows, columns;
};
inline const std::vector<Size> kSizes{{1, 1},    {3, 3},     {5, 17}, {17, 64},   {64, 100},
                                      {7, 1023}, {130, 259}, {0, 16}, {2, 20000}, {700, 48}};

}  // namespace mcpp::test

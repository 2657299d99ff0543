#include "tensor/out_of_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "tensor/tensor.h"

namespace mcpp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

MemoryTable in_use(std::array<i64, kMemoryClasses> bytes) {
  MemoryTable table;
  for (std::size_t c = 0; c < kMemoryClasses; ++c) {
    table.by_class[c] = {bytes[c], bytes[c]};
    table.total.bytes += bytes[c];
  }
  table.total.peak = table.total.bytes;
  return table;
}

constexpr i64 kGiB = i64{1} << 30;
constexpr SystemMemory kSystem{.total = 80 * kGiB, .free = kGiB / 2};

/// Returns the advice given when every class holds 1 GiB and `c` holds a different amount.
std::string text_with_largest_class(MemoryClass c) {
  std::array<i64, kMemoryClasses> bytes;
  bytes.fill(kGiB);
  bytes[static_cast<std::size_t>(c)] += kGiB;
  return out_of_memory_text({kGiB / 4, MemoryClass::Workspace}, in_use(bytes), kSystem);
}

TEST(OutOfMemoryTest, AdvisesOnLargestMemoryClass) {
  EXPECT_THAT(text_with_largest_class(MemoryClass::Params),
              HasSubstr("The largest class is parameters: training.precision"));
  EXPECT_THAT(text_with_largest_class(MemoryClass::Params), HasSubstr("zero_stage = 3"));
  EXPECT_THAT(text_with_largest_class(MemoryClass::Grads),
              HasSubstr("The largest class is gradients: parallel.zero_stage = 2"));
  EXPECT_THAT(text_with_largest_class(MemoryClass::OptimizerState),
              HasSubstr("The largest class is optimizer state: parallel.zero_stage = 1"));
  EXPECT_THAT(text_with_largest_class(MemoryClass::Activations),
              AllOf(HasSubstr("The largest class is activations: lower training.micro_batch_size"),
                    HasSubstr("recompute_granularity"), Not(HasSubstr("zero_stage"))));
  EXPECT_THAT(text_with_largest_class(MemoryClass::RecordedPasses),
              HasSubstr("The largest class is recorded passes: device.cuda_graph_impl = \"none\""));
  EXPECT_THAT(text_with_largest_class(MemoryClass::Workspace), HasSubstr("The largest class is workspace: lower"));
}

TEST(OutOfMemoryTest, ErrorIncludesRequestedBytes) {
  const MemoryTable table = in_use({3 * kGiB, 0, 0, kGiB, 0, 0, 0});
  EXPECT_THAT(out_of_memory_text({kGiB, MemoryClass::Activations}, table, kSystem),
              HasSubstr("The largest class is parameters"));
  const std::string text = out_of_memory_text({3 * kGiB, MemoryClass::Activations}, table, kSystem);
  EXPECT_THAT(text, AllOf(HasSubstr("3.00 GiB more for activations"), HasSubstr("of 80.00 GiB that the device has"),
                          HasSubstr("512.00 MiB are free"), HasSubstr("The largest class is activations")));
}

TEST(OutOfMemoryTest, CpuErrorHasTableAndAdvice) {
  CpuDevice device;
  const Tensor small = Tensor::empty({1024}, DType::F32, device, MemoryClass::Params);
  try {
    Tensor::empty({i64{1} << 50}, DType::F32, device, MemoryClass::OptimizerState);
    FAIL() << "4 PiB were had";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::OutOfMemory);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("more for optimizer state could not be allocated"), HasSubstr("parameters"),
                      HasSubstr("4.00 KiB"), HasSubstr("parallel.zero_stage = 1")));
  }
  EXPECT_NO_THROW(Tensor::empty({1024}, DType::F32, device));
}

TEST(SystemMemoryTest, ReportsCpuMemory) {
  const CpuDevice device;
  const SystemMemory memory = system_memory(device);
  EXPECT_GT(memory.free, 0);
  EXPECT_GT(memory.total, memory.free);
}

}  // namespace
}  // namespace mcpp

// Moments stored in bf16 or in one byte each: updates close to those with fp32 moments, bitwise identical continuation
// after a save, and conversion between all formats.
#include <gtest/gtest.h>

#include <cstring>

#include "nn/offload/stored_array.h"
#include "tests/optimizer/small_model.h"
#include "tests/support/disk_folder.h"
#include "tests/support/tensors.h"

namespace mcpp {
namespace {

using test::SmallModel;

OptimizerConfig config_of(OptimizerKind kind, StateDType moments) {
  OptimizerConfig config;
  config.optimizer = kind;
  config.exp_avg_dtype = moments;
  if (kind != OptimizerKind::Sgd) config.exp_avg_sq_dtype = moments;
  return config;
}

std::string name_of(const OptimizerConfig& config) {
  return str(enum_name(config.optimizer), " ", enum_name(config.exp_avg_dtype));
}

double distance(const SmallModel& a, const SmallModel& b) {
  return test::relative_distance(a.weights(), b.weights());
}

class LowPrecisionMomentsTest : public testing::Test {
 protected:
  const test::DiskFolder folder_;
};

/// Compares the distance of the weights with the distance that training moved them, in fp32 so that weights are not
/// rounded.
TEST_F(LowPrecisionMomentsTest, TrainingStaysCloseToFp32Moments) {
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
    const SmallModel start(DType::F32, config_of(kind, StateDType::Fp32));
    SmallModel full(DType::F32, config_of(kind, StateDType::Fp32)), bf16(DType::F32, config_of(kind, StateDType::Bf16)),
        bytes(DType::F32, config_of(kind, StateDType::Uint8)), e4m3(DType::F32, config_of(kind, StateDType::Fp8E4m3)),
        e5m2(DType::F32, config_of(kind, StateDType::Fp8E5m2));
    for (int i = 0; i < 50; ++i) {
      for (SmallModel* model : {&full, &bf16, &bytes, &e4m3, &e5m2}) model->step();
    }
    SCOPED_TRACE(enum_name(kind));
    const double moved = distance(full, start);
    EXPECT_LT(distance(bf16, full), 0.005 * moved);
    EXPECT_GT(distance(bf16, full), 0);
    EXPECT_LT(distance(bytes, full), 0.025 * moved);
    EXPECT_GT(distance(bytes, full), 0);
    // Less than the largest relative error of a single rounding, although errors accumulate over the steps.
    EXPECT_LT(distance(e4m3, full), 0x1p-4 * moved);
    EXPECT_LT(distance(e5m2, full), 0x1p-3 * moved);
    EXPECT_LT(distance(e4m3, full), distance(e5m2, full)) << "E4M3 has more values per power of two";
  }
}

TEST_F(LowPrecisionMomentsTest, UseExpectedMemory) {
  const auto bytes = [](StateDType type) {
    SmallModel model(DType::F32, config_of(OptimizerKind::Adam, type));
    return static_cast<double>(
        model.device().memory().by_class[static_cast<std::size_t>(MemoryClass::OptimizerState)].bytes);
  };
  const double full = bytes(StateDType::Fp32);
  EXPECT_NEAR(bytes(StateDType::Bf16) / full, 0.5, 0.05);
  for (const StateDType type : {StateDType::Uint8, StateDType::Fp8E4m3, StateDType::Fp8E5m2})
    EXPECT_NEAR(bytes(type) / full, (1 + 1.0 / 16) / 4, 0.05);
}

/// Covers more values than are decoded at a time, also starting in the middle of a block. Each must be read as its
/// format stores it.
TEST_F(LowPrecisionMomentsTest, ReadAndWriteInChunks) {
  constexpr i64 kCount = 2 * StoredArray::kChunk + 1024, kFirst = 37, kSome = StoredArray::kChunk + 500;
  CpuDevice device;
  Tensor values = Tensor::empty({kCount}, DType::F32, device), model = Tensor::empty({kCount}, DType::BF16, device);
  for (i64 i = 0; i < kCount; ++i) values.data<float>()[i] = 1e-3F * static_cast<float>((i * 7919) % 100003);
  for (const StorageForm form :
       {StorageForm::Bf16, StorageForm::Signed, StorageForm::NonNegative, StorageForm::E4m3, StorageForm::E5m2,
        StorageForm::PositiveE4m3, StorageForm::PositiveE5m2, StorageForm::Remainder}) {
    const auto make_array = [&] {
      std::vector<StoredArray> vectors;
      for (const auto& [dtype, count] : stored_vectors(form, DType::F32, kCount))
        vectors.emplace_back(Tensor::zeros({count}, dtype, device));
      return StoredArray(form, DType::F32, kCount, vectors);
    };
    const StoredArray all = make_array().with_model(StoredArray(model)), at_once = make_array();
    all.write(values);
    Tensor expected = values;
    if (form != StorageForm::Remainder) {
      at_once.encode(values);
      expected = at_once.decode();
    }
    const auto same = [&](const Tensor& a, i64 first) {
      return std::memcmp(a.raw(), expected.flat(first, a.numel()).raw(), static_cast<std::size_t>(a.bytes())) == 0;
    };
    Tensor back = Tensor::empty({kCount}, DType::F32, device), some = Tensor::empty({kSome}, DType::F32, device);
    all.read(back);
    EXPECT_TRUE(same(back, 0));
    const StoredArray part = all.part(kFirst, kSome);
    part.read(some);
    EXPECT_TRUE(same(some, kFirst));
    part.write(some);  // values already in this format
    all.snapshot().read(back);
    EXPECT_TRUE(same(back, 0));
  }
}

/// Covers every offload tier and different segment sizes: a restored run must continue bitwise identically.
TEST_F(LowPrecisionMomentsTest, ContinueBitwiseIdenticallyAfterLoad) {
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
    for (const StateDType type : {StateDType::Bf16, StateDType::Uint8, StateDType::Fp8E4m3, StateDType::Fp8E5m2}) {
      const OptimizerConfig resident = config_of(kind, type);
      for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
        OptimizerConfig offloaded = resident;
        offloaded.offload = tier;
        offloaded.offload_segment_size = 700;
        if (tier == OffloadTier::File) offloaded.offload_folder = folder_.path().string();
        SCOPED_TRACE(str(name_of(resident), " ", enum_name(tier)));
        SmallModel a(DType::BF16, resident), b(DType::BF16, offloaded);
        for (int i = 0; i < 5; ++i) a.step(), b.step();
        EXPECT_TRUE(a.state_bytes() == b.state_bytes());
        a.step();  // b has not taken this step
        b.draw_as(a);
        test::load_states(a, b);
        EXPECT_TRUE(a.state_bytes() == b.state_bytes());
        for (int i = 0; i < 5; ++i) a.step(), b.step();
        EXPECT_TRUE(a.state_bytes() == b.state_bytes());
      }
    }
  }
}

TEST_F(LowPrecisionMomentsTest, LoadFromAnyOtherFormat) {
  // Bounds of the relative rounding error. Those of fp8 are the largest errors of single values.
  const std::map<StateDType, double> bounds{{StateDType::Fp32, 0.003},
                                            {StateDType::Bf16, 0.003},
                                            {StateDType::Uint8, 0.02},
                                            {StateDType::Fp8E4m3, 0x1p-4},
                                            {StateDType::Fp8E5m2, 0x1p-3}};
  constexpr std::array kTypes{StateDType::Fp32, StateDType::Bf16, StateDType::Uint8, StateDType::Fp8E4m3,
                              StateDType::Fp8E5m2};
  for (const StateDType from : kTypes) {
    for (const StateDType to : kTypes) {
      SmallModel a(DType::BF16, config_of(OptimizerKind::Adam, from)),
          b(DType::BF16, config_of(OptimizerKind::Adam, to));
      for (int i = 0; i < 5; ++i) a.step();
      test::load_states(a, b);
      SCOPED_TRACE(str(enum_name(from), " ", enum_name(to)));
      for (const auto& [name, values] : a.states()) {
        const std::vector<float> loaded = b.states().at(name);
        const bool is_master = name.starts_with("master");
        if (is_master || from == to || to == StateDType::Fp32) {
          EXPECT_EQ(loaded, values) << name;
        }
        EXPECT_LE(test::relative_distance({loaded.begin(), loaded.end()}, {values.begin(), values.end()}),
                  bounds.at(to))
            << name;
      }
    }
  }
}

TEST(LowPrecisionMomentsConfigTest, ReportsKeysWithoutEffect) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Sgd;
  config.exp_avg_sq_dtype = StateDType::Bf16;
  EXPECT_EQ(config.conflicts(), std::vector<std::string>{"optimizer.exp_avg_sq_dtype: sgd has no second moments"});
}

}  // namespace
}  // namespace mcpp

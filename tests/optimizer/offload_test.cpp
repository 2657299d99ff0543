// Optimizer states offloaded to host memory and to disk: updates are bitwise identical to those of resident states, and
// disk errors end the run.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/offload/file_states.h"
#include "nn/offload/state_store.h"
#include "tests/optimizer/small_model.h"
#include "tests/support/disk_folder.h"
#include "tests/support/errors.h"
#include "tests/support/fakes/faulty_queue.h"
#include "tests/support/lazy_copies.h"

namespace mcpp::offload_test {
namespace {

using test::FaultyQueue;
using test::SmallModel;
using Bytes = SmallModel::Bytes;

constexpr i64 kSegment = 512;  // small enough for about twenty segments

OptimizerConfig config_of(OptimizerKind kind) {
  OptimizerConfig config;
  config.optimizer = kind;
  return config;
}

class OptimizerOffloadTest : public testing::Test {
 protected:
  OptimizerConfig offloaded(OptimizerKind kind, OffloadTier tier, double fraction = 1) const {
    OptimizerConfig config = config_of(kind);
    config.offload = tier;
    config.offload_fraction = fraction;
    config.offload_segment_size = kSegment;
    if (tier == OffloadTier::File) config.offload_folder = folder_.path().string();
    return config;
  }
  std::unique_ptr<StateStore> on_file(Device& device, std::unique_ptr<TransferQueue> queue) const {
    StateStoreOptions options{.tier = OffloadTier::File, .longest_segment = kSegment, .folder = folder_.path()};
    options.key = "key", options.supports_snapshots = true;
    return std::make_unique<StateStore>(device, std::move(options), std::move(queue));
  }

  const test::DiskFolder folder_;
};

TEST_F(OptimizerOffloadTest, UpdatesAreBitwiseIdentical) {
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
    for (const DType dtype : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
      SmallModel resident(dtype, config_of(kind));
      for (int i = 0; i < 20; ++i) resident.step();
      const auto expected = resident.state_bytes();
      for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
        for (const double fraction : {1.0, 0.4}) {
          SCOPED_TRACE(str(enum_name(kind), " ", name_of(dtype), " ", enum_name(tier), " ", fraction));
          SmallModel offloaded_model(dtype, offloaded(kind, tier, fraction));
          for (int i = 0; i < 20; ++i) offloaded_model.step();
          EXPECT_TRUE(offloaded_model.state_bytes() == expected);
        }
      }
    }
  }
}

/// Gradients arrive and weights return while other parts are updated in host memory, as on a GPU.
TEST_F(OptimizerOffloadTest, OverlappedUpdatesAreBitwiseIdentical) {
  const auto store_of = [&](const OptimizerConfig& config, Device& device) {
    StateStoreOptions options = state_store_options(config, device, true);
    options.host = std::make_shared<CpuDevice>();
    return std::make_unique<StateStore>(device, std::move(options));
  };
  struct Place {
    OffloadTier tier;
    double fraction;
  };
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
    for (const DType dtype : {DType::F32, DType::BF16, DType::F64}) {
      for (const bool has_remainders : {false, true}) {
        if (has_remainders && dtype != DType::BF16) continue;
        for (const auto [tier, fraction] : {Place{OffloadTier::Host, 1}, Place{OffloadTier::Host, 0.4},
                                            Place{OffloadTier::File, 1}, Place{OffloadTier::File, 0.4}}) {
          SCOPED_TRACE(
              str(enum_name(kind), " ", name_of(dtype), " ", has_remainders, " ", enum_name(tier), " ", fraction));
          OptimizerConfig config = config_of(kind), far = offloaded(kind, tier, fraction);
          config.store_param_remainders = far.store_param_remainders = has_remainders;
          const test::LazyCopies* copies = nullptr;
          SmallModel resident(dtype, config);
          SmallModel offloaded_model(
              dtype, far, [&](Device& device) { return store_of(far, device); },
              [&](Device& device) {
                auto made = std::make_unique<test::LazyCopies>(device);
                copies = made.get();
                return made;
              });
          const std::size_t at_the_start = copies->begun();
          for (int i = 0; i < 5; ++i) resident.step(), offloaded_model.step();
          EXPECT_TRUE(offloaded_model.state_bytes() == resident.state_bytes());
          EXPECT_GT(copies->begun() - at_the_start, 50U);
          EXPECT_EQ(copies->num_pending(), 0U);
        }
      }
    }
  }
}

TEST_F(OptimizerOffloadTest, ThreadQueueMatchesRingQueue) {
  SmallModel resident(DType::BF16, config_of(OptimizerKind::Adam));
  SmallModel offloaded_model(DType::BF16, config_of(OptimizerKind::Adam),
                             [&](Device& device) { return on_file(device, make_thread_queue()); });
  for (int i = 0; i < 20; ++i) resident.step(), offloaded_model.step();
  EXPECT_TRUE(offloaded_model.state_bytes() == resident.state_bytes());
}

/// Only FileStates::kSlots segments and the resident fraction are in device memory.
TEST_F(OptimizerOffloadTest, UsesMemoryOfFewSegmentsOnly) {
  const auto bytes = [](SmallModel& model) {
    return model.device().memory().by_class[static_cast<std::size_t>(MemoryClass::OptimizerState)].peak;
  };
  SmallModel resident(DType::BF16, config_of(OptimizerKind::Adam)),
      host(DType::BF16, offloaded(OptimizerKind::Adam, OffloadTier::Host)),
      half(DType::BF16, offloaded(OptimizerKind::Adam, OffloadTier::Host, 0.5)),
      file(DType::BF16, offloaded(OptimizerKind::Adam, OffloadTier::File));
  for (SmallModel* model : {&resident, &host, &half, &file}) model->step();
  EXPECT_EQ(bytes(host), 0);
  EXPECT_NEAR(static_cast<double>(bytes(half)) / static_cast<double>(bytes(resident)), 0.5, 0.15);
  EXPECT_LE(bytes(file), FileStates::kSlots * 3 * (kSegment * 4 + 2 * ScratchFile::kAlignment + 1024));
  EXPECT_CONTAINS(file.optimizer().describe_states(), "100% on the disk of " + folder_.path().string());
  EXPECT_CONTAINS(host.optimizer().describe_states(), "100% in host memory, ");
  EXPECT_EQ(resident.optimizer().describe_states(), "");
}

TEST_F(OptimizerOffloadTest, SkippedStepChangesNothing) {
  for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
    SmallModel model(DType::BF16, offloaded(OptimizerKind::Muon, tier));
    model.step();
    const auto before = model.state_bytes();
    EXPECT_TRUE(model.step(std::nan("")).is_skipped);
    EXPECT_TRUE(model.state_bytes() == before);
    EXPECT_EQ(model.optimizer().steps(), 1);
  }
}

/// A concurrent save writes the values of its step, which it reads while later steps run.
TEST_F(OptimizerOffloadTest, SnapshotsKeepTheirValues) {
  for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
    for (const StateDType moments : {StateDType::Fp32, StateDType::Uint8}) {
      for (const bool has_remainders : {false, true}) {
        SCOPED_TRACE(str(enum_name(tier), " ", enum_name(moments), " ", has_remainders));
        OptimizerConfig config = offloaded(OptimizerKind::Adam, tier);
        config.exp_avg_dtype = config.exp_avg_sq_dtype = moments;
        config.store_param_remainders = has_remainders;
        SmallModel model(DType::BF16, config);
        for (int round = 0; round < 3; ++round) EXPECT_EQ(test::expect_snapshots_stay(model), 15U);
      }
    }
  }
}

TEST_F(OptimizerOffloadTest, DiskErrorsAreNamedAndEndRun) {
  using Fault = FaultyQueue::Fault;
  const auto error_with = [&](Fault fault) {
    const FaultyQueue::Plan in_the_middle_of_a_step{fault, 7};
    return test::error_of_fault(in_the_middle_of_a_step, [&](const FaultyQueue::Plan& plan) {
      const auto model = std::make_shared<SmallModel>(DType::BF16, config_of(OptimizerKind::Adam), [&](Device& device) {
        return on_file(device, std::make_unique<FaultyQueue>(plan));
      });
      for (int i = 0; i < 3; ++i) model->step();
      return [model] {
        for (int i = 0; i < 3; ++i) model->step();
      };
    });
  };
  const std::string file = "the scratch file in " + folder_.path().string();
  EXPECT_CONTAINS(error_with(Fault::DiskIsFull),
                  "cannot write " + file + ": No space left on device; the stored part of the optimizer's state is");
  EXPECT_CONTAINS(error_with(Fault::ReadFails),
                  "cannot read " + file + ": Input/output error; the stored part of the optimizer's state is lost");
  EXPECT_CONTAINS(error_with(Fault::BitIsFlipped), file + ": segment ");
  EXPECT_CONTAINS(error_with(Fault::BitIsFlipped), "of the optimizer's state differs from its checksum");
  EXPECT_EQ(error_with(Fault::None), "");
}

TEST_F(OptimizerOffloadTest, SlowDiskOrRemovedFolderChangesNothing) {
  FaultyQueue::Plan plan{FaultyQueue::Fault::DiskIsSlow, 0};
  SmallModel resident(DType::F32, config_of(OptimizerKind::Adam));
  SmallModel slow(DType::F32, config_of(OptimizerKind::Adam),
                  [&](Device& device) { return on_file(device, std::make_unique<FaultyQueue>(plan)); });
  std::filesystem::remove_all(folder_.path());
  for (int i = 0; i < 3; ++i) resident.step(), slow.step();
  EXPECT_TRUE(slow.state_bytes() == resident.state_bytes());
}

/// A flipped bit on the disk must be detected, also by the read of a checkpoint save.
TEST_F(OptimizerOffloadTest, VerifiesChecksumsOfDataOnDisk) {
  auto file = std::make_shared<ScratchFile>(folder_.path(), 3 * FileRegion::kChunk, "key");
  FileRegion region(file, FileRegion::kChunk, 2 * FileRegion::kChunk, "a vector");
  Bytes data(1000, std::byte{7}), back(3000);
  EXPECT_TRUE(region.is_blank());
  region.read(FileRegion::kChunk - 1500, back);
  EXPECT_TRUE(back == Bytes(3000)) << "never written";
  region.write(FileRegion::kChunk - 500, data);
  region.read(FileRegion::kChunk - 1500, back);
  Bytes expected(3000);
  std::fill(expected.begin() + 1000, expected.begin() + 2000, std::byte{7});
  EXPECT_TRUE(back == expected);
  AlignedBytes block(4096);
  EXPECT_EQ(transfer_now(file->transfer(FileTransfer::Kind::Read, 2 * FileRegion::kChunk, block.bytes())), 0);
  block.bytes()[3000] ^= std::byte{1};
  EXPECT_EQ(transfer_now(file->transfer(FileTransfer::Kind::Write, 2 * FileRegion::kChunk, block.bytes())), 0);
  region.read(0, back);  // reads the first chunk only
  EXPECT_CONTAINS(test::error_of([&] { region.read(FileRegion::kChunk, back); }), "a vector differs from its checksum");
}

TEST_F(OptimizerOffloadTest, RejectsUnusableFolderAtStart) {
  OptimizerConfig config = offloaded(OptimizerKind::Adam, OffloadTier::File);
  config.offload_folder = "/proc/self";
  EXPECT_CONTAINS(test::input_error([&] { const SmallModel model(DType::F32, config); }),
                  "optimizer.offload_folder: /proc");
}

TEST(OffloadConfigTest, ReportsKeysWithoutEffect) {
  OptimizerConfig config;
  config.offload = OffloadTier::File;
  config.offload_fraction = 0.5;
  config.offload_segment_size = 1024;
  EXPECT_TRUE(config.conflicts().empty());
  config.offload = OffloadTier::Device;
  EXPECT_EQ(config.conflicts().size(), 2U);
}

}  // namespace
}  // namespace mcpp::offload_test

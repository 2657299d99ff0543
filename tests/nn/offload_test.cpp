// Activations offloaded to host memory and to disk are restored bitwise identical, even when the disk is slow, and disk
// errors end the run.
#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "nn/microbatch_context.h"
#include "nn/offload/activation_store.h"
#include "nn/offload/file_activations.h"
#include "tensor/transfer.h"
#include "tests/support/disk_folder.h"
#include "tests/support/errors.h"
#include "tests/support/fakes/faulty_queue.h"
#include "tests/support/lazy_copies.h"

namespace mcpp {
namespace {

using test::FaultyQueue;

class ActivationOffloadTest : public testing::Test {
 protected:
  std::unique_ptr<ActivationStore> on_file(std::unique_ptr<TransferQueue> queue = make_transfer_queue(),
                                           i64 bytes = 0) {
    const ActivationOffload offload{.tier = OffloadTier::File, .folder = folder_.path(), .key = "key", .bytes = bytes};
    return std::make_unique<FileActivations>(offload, device_, std::move(queue), make_async_copy_engine(device_));
  }
  std::unique_ptr<ActivationStore> on_file_with_async_copies() {
    const ActivationOffload offload{.tier = OffloadTier::File, .folder = folder_.path(), .key = "key"};
    return std::make_unique<FileActivations>(offload, device_, make_transfer_queue(),
                                             std::make_unique<test::LazyCopies>(device_));
  }
  /// Both kinds of stores, each as used on a CPU and on a GPU, whose copies overlap with compute.
  std::vector<std::unique_ptr<ActivationStore>> stores() {
    std::vector<std::unique_ptr<ActivationStore>> list;
    list.push_back(std::make_unique<HostActivations>(make_async_copy_engine(device_)));
    list.push_back(std::make_unique<HostActivations>(std::make_unique<test::LazyCopies>(device_)));
    list.push_back(on_file_with_async_copies());
    list.push_back(on_file());
    return list;
  }
  /// Returns a tensor with the values first, first + 1, ...
  Tensor counting(i64 count, i32 first) {
    Tensor t = Tensor::empty({count}, DType::I32, device_);
    std::vector<i32> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), first);
    write_values(values, t);
    return t;
  }
  void abort_and_continue(ActivationStore& store) {
    for (i32 round = 0; round < 20; ++round) {
      std::vector<std::unique_ptr<OffloadedTensors>> offloaded;
      for (i32 i = 0; i < 8; ++i) offloaded.push_back(store.put({counting(100000, round * 8 + i)}));
      offloaded[1]->prefetch();
      EXPECT_EQ(read_values<i32>(offloaded[5]->take()[0]), read_values<i32>(counting(100000, round * 8 + 5)));
    }
  }
  i64 device_bytes() const {
    return device_.memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)].bytes;
  }

  const test::DiskFolder folder_;
  CpuDevice device_;
};

/// Covers tensors of several sizes from several microbatches, restored in LIFO and in FIFO order, as pipeline schedules
/// do.
TEST_F(ActivationOffloadTest, RestoresTensorsBitwiseInAnyOrder) {
  for (const auto& store : stores()) {
    for (const bool oldest_first : {false, true}) {
      std::deque<std::unique_ptr<OffloadedTensors>> offloaded;
      for (i32 i = 0; i < 12; ++i) offloaded.push_back(store->put({counting(1 + i * 40000, i), counting(7, -i)}));
      for (i32 i = 0; i < 12; ++i) {
        const i32 which = oldest_first ? i : 11 - i;
        auto& next = offloaded[static_cast<std::size_t>(which)];
        if (i % 3 == 0) next->prefetch(), next->prefetch();
        const std::vector<Tensor> tensors = next->take();
        next.reset();
        ASSERT_EQ(tensors.size(), 2U);
        EXPECT_EQ(read_values<i32>(tensors[0]), read_values<i32>(counting(1 + which * 40000, which)));
        EXPECT_EQ(read_values<i32>(tensors[1]), read_values<i32>(counting(7, -which)));
      }
    }
  }
}

TEST_F(ActivationOffloadTest, UsesMemoryOfFewBuffersOnly) {
  constexpr i64 kBytes = 1 << 20;
  const auto all = stores();
  const std::vector<i64> kept{0, HostActivations::kMaxPendingOffloads, FileActivations::kSlots + 1,
                              FileActivations::kSlots};
  for (std::size_t s = 0; s < all.size(); ++s) {
    ActivationStore& store = *all[s];
    const i64 before = device_bytes();
    std::vector<std::unique_ptr<OffloadedTensors>> offloaded;
    for (i32 i = 0; i < 20; ++i) offloaded.push_back(store.put({counting(kBytes / 4, i)}));
    EXPECT_LE(device_bytes() - before, kept[s] * (kBytes + kBytes / 16));
    const i64 peak = store.peak().in_host + store.peak().on_disk;
    EXPECT_GE(peak, 20 * kBytes);
    EXPECT_LE(peak, 20 * (kBytes + kBytes / 16));  // each block of pinned memory occupies full pages
    offloaded.clear();
    offloaded.push_back(store.put({counting(kBytes / 4, 1)}));
    EXPECT_EQ(store.peak().in_host + store.peak().on_disk, peak);
  }
}

/// The tensors offloaded last are still on the device. Earlier ones are prefetched concurrently, and only take() waits.
TEST_F(ActivationOffloadTest, HostCopiesOverlapWithCompute) {
  auto lazy = std::make_unique<test::LazyCopies>(device_);
  const test::LazyCopies& copies = *lazy;
  HostActivations store(std::move(lazy));
  constexpr i32 kUnits = 6;
  std::deque<std::unique_ptr<OffloadedTensors>> offloaded;
  std::vector<const void*> addresses;
  for (i32 i = 0; i < kUnits; ++i) {
    const Tensor t = counting(5000, i);
    addresses.push_back(t.raw());
    offloaded.push_back(store.put({t}));
    EXPECT_EQ(copies.num_pending(),
              std::min<std::size_t>(static_cast<std::size_t>(i) + 1, HostActivations::kMaxPendingOffloads));
  }
  for (i32 i = kUnits - 1; i >= 0; --i) {
    const bool is_resident = i >= kUnits - static_cast<i32>(HostActivations::kMaxPendingOffloads);
    offloaded.back()->prefetch();
    EXPECT_EQ(copies.num_pending(), i + 2 == kUnits ? 0U : i + 1 == kUnits ? 2U : 1U) << i;
    const std::vector<Tensor> tensors = offloaded.back()->take();
    if (is_resident) {
      EXPECT_EQ(tensors[0].raw(), addresses[static_cast<std::size_t>(i)]) << i;
    }
    EXPECT_EQ(read_values<i32>(tensors[0]), read_values<i32>(counting(5000, i)));
    offloaded.pop_back();
  }
  EXPECT_EQ(copies.num_pending(), 0U);
}

/// A step is aborted while transfers are in flight. The next step reuses the same file blocks.
TEST_F(ActivationOffloadTest, ReusesBlocksAfterAbortedStep) {
  const auto all = stores();
  for (const auto& store : all) abort_and_continue(*store);
  EXPECT_LE(all.back()->peak().on_disk, 8 * FileActivations::kBlock);
}

TEST_F(ActivationOffloadTest, DiskErrorsAreNamedAndEndRun) {
  using Fault = FaultyQueue::Fault;
  const auto error_with = [&](Fault fault) {
    return test::error_of_fault({fault, 3}, [&](const FaultyQueue::Plan& plan) {
      const std::shared_ptr<ActivationStore> store = on_file(std::make_unique<FaultyQueue>(plan));
      return [this, store] {
        std::deque<std::unique_ptr<OffloadedTensors>> offloaded;
        for (i32 i = 0; i < 12; ++i) offloaded.push_back(store->put({counting(100000, i)}));
        for (; !offloaded.empty(); offloaded.pop_back())
          EXPECT_EQ(read_values<i32>(offloaded.back()->take()[0])[0], static_cast<i32>(offloaded.size()) - 1);
      };
    });
  };
  const std::string file_name = "the scratch file in " + folder_.path().string();
  EXPECT_CONTAINS(
      error_with(Fault::DiskIsFull),
      "cannot write " + file_name + ": No space left on device; the stored part of the activations is lost");
  EXPECT_CONTAINS(error_with(Fault::ReadFails),
                  "cannot read " + file_name + ": Input/output error; the stored part of the activations is lost");
  EXPECT_CONTAINS(error_with(Fault::BitIsFlipped), file_name + ": a block of activations differs from its checksum");
  EXPECT_EQ(error_with(Fault::DiskIsSlow), "");
  EXPECT_EQ(error_with(Fault::None), "");
}

TEST_F(ActivationOffloadTest, WorksAfterFolderIsRemoved) {
  const auto store = on_file();
  std::filesystem::remove_all(folder_.path());
  std::vector<std::unique_ptr<OffloadedTensors>> offloaded;
  for (i32 i = 0; i < 8; ++i) offloaded.push_back(store->put({counting(200000, i)}));
  EXPECT_EQ(read_values<i32>(offloaded[0]->take()[0]), read_values<i32>(counting(200000, 0)));
}

TEST_F(ActivationOffloadTest, RejectsSizeBeyondDiskSpace) {
  EXPECT_CONTAINS(test::input_error([&] { on_file(make_transfer_queue(), i64{1} << 60); }), "key: ");
  EXPECT_CONTAINS(test::input_error([&] { on_file(make_transfer_queue(), i64{1} << 60); }), "needs 1024.00 PiB");
}

/// A tensor saved by several owners, or kept as input for recomputation, is restored as one shared tensor. All of it is
/// offloaded in between.
TEST_F(ActivationOffloadTest, RestoresSavedTensorsAndRecomputationInputs) {
  const auto all = stores();
  for (const auto& store : all) {
    const i64 before = device_bytes();
    MicrobatchContext pass;
    const int a = 0, b = 0;
    pass.save(&a, counting(5, 50));
    for (i32 unit = 0; unit < 6; ++unit) {
      const std::size_t saved = pass.saved_tensors.size();
      const Tensor x = counting(1000, unit), y = counting(1000, 7 * unit);
      pass.save(&a, x);
      pass.save(&b, x.view({10, 100}));
      pass.save(&b, Tensor());
      const MicrobatchContext::DiscardScope scope(pass, y, {x}, [&](std::span<const Tensor> inputs) {
        return counting(1000, 7 * read_values<i32>(inputs[0])[0]);
      });
      pass.save(&a, y);
      pass.save(&b, y);
      pass.saved_tensors.offload(saved, *store);
    }
    pass.save(&b, counting(3, 9));
    if (store == all.front()) {
      EXPECT_EQ(device_bytes() - before, 2 * 64);
    }
    pass.saved_tensors.prefetch();
    EXPECT_EQ(read_values<i32>(pass.take(&b))[0], 9);
    for (i32 unit = 5; unit >= 0; --unit) {
      const Tensor y1 = pass.take(&b), y2 = pass.take(&a);
      EXPECT_EQ(y1.raw(), y2.raw());
      EXPECT_EQ(read_values<i32>(y1), read_values<i32>(counting(1000, 7 * unit)));
      EXPECT_FALSE(pass.take(&b).defined());
      const Tensor x1 = pass.take(&b), x2 = pass.take(&a);
      EXPECT_EQ(x1.raw(), x2.raw());
      EXPECT_EQ(x1.shape(), (Shape{10, 100}));
      EXPECT_EQ(read_values<i32>(x2), read_values<i32>(counting(1000, unit)));
    }
    EXPECT_EQ(read_values<i32>(pass.take(&a)), read_values<i32>(counting(5, 50)));
    EXPECT_TRUE(pass.saved_tensors.empty());
  }
}

}  // namespace
}  // namespace mcpp

// Optimizer states on disk: a fetched segment contains what was last written to it, whatever the order of accesses, and
// the memory used depends on the longest segments only.
#include "nn/offload/file_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/disk_folder.h"
#include "tests/support/tensors.h"

namespace mcpp {
namespace {

/// Returns the segments of one table and several layers, with vectors of several types.
std::vector<std::vector<VectorSpec>> segments() {
  std::vector<std::vector<VectorSpec>> all{{{DType::F32, 400'000}, {DType::BF16, 400'000}}};
  for (int layer = 0; layer < 7; ++layer) all.push_back({{DType::F32, 10'000 + layer}, {DType::F64, 5'000}});
  all.push_back({{DType::BF16, 3}});
  return all;
}

i64 bytes_of(const std::vector<VectorSpec>& segment) {
  i64 sum = 0;
  for (const VectorSpec& vector : segment) sum += aligned_bytes(vector.bytes());
  return sum;
}

/// Counts the reads that were started, by file offset.
class WatchedQueue final : public TransferQueue {
 public:
  explicit WatchedQueue(std::map<i64, int>& reads) : reads_(reads) {}

  Ticket start(const FileTransfer& transfer) override {
    if (transfer.kind == FileTransfer::Kind::Read) ++reads_[transfer.offset];
    return transfers_->start(transfer);
  }
  int wait(Ticket ticket) override { return transfers_->wait(ticket); }
  std::string_view name() const override { return transfers_->name(); }

 private:
  std::map<i64, int>& reads_;
  std::unique_ptr<TransferQueue> transfers_ = make_transfer_queue();
};

class FileStatesTest : public testing::Test {
 protected:
  FileStatesTest() {
    for (const auto& segment : segments()) store_.add(segment);
    store_.reserve();
  }

  /// Checks the values that the last update of the segment left, and writes new ones.
  void update(std::size_t segment) {
    std::vector<Tensor> vectors = store_.fetch(segment);
    ASSERT_EQ(vectors.size(), segments()[segment].size());
    for (std::size_t v = 0; v < vectors.size(); ++v) {
      Tensor& t = vectors[v];
      ASSERT_EQ(t.dtype(), segments()[segment][v].dtype);
      ASSERT_EQ(t.numel(), segments()[segment][v].count);
      const auto data = std::span(static_cast<u8*>(t.raw()), static_cast<std::size_t>(t.bytes()));
      const auto at = [&](std::size_t i, int updates) {
        return updates == 0 ? u8{0} : static_cast<u8>(i + 3 * v + 7 * segment + 31 * static_cast<std::size_t>(updates));
      };
      for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], at(i, updates_[segment])) << segment << " " << i;
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = at(i, updates_[segment] + 1);
    }
    ++updates_[segment];
    store_.drop(segment);
  }
  /// Returns how many reads of this segment were started so far. The segment must have been updated once.
  int reads(std::size_t segment) const {
    i64 offset = 0;
    for (std::size_t before = 0; before < segment; ++before) offset += bytes_of(segments()[before]);
    const auto it = reads_.find(offset);
    return it == reads_.end() ? 0 : it->second;
  }
  void look_at(std::size_t segment) {
    (void)store_.fetch(segment);
    store_.release_clean(segment);
  }

  const test::DiskFolder folder_;
  std::shared_ptr<CpuDevice> host_ = std::make_shared<CpuDevice>();
  std::map<i64, int> reads_;  // keyed by the offset of the vector
  FileStates store_{{.host = host_, .folder = folder_.path(), .key = "key"}, std::make_unique<WatchedQueue>(reads_)};
  std::vector<int> updates_ = std::vector<int>(segments().size());
};

TEST_F(FileStatesTest, MemoryIsBoundedByLongestSegments) {
  std::vector<std::size_t> forward(segments().size());
  std::ranges::generate(forward, [s = std::size_t{0}]() mutable { return s++; });
  const std::vector<std::size_t> backward(forward.rbegin(), forward.rend());
  for (int step = 0; step < 5; ++step) {
    for (const auto& order : {forward, backward}) {
      store_.prefetch(order);
      for (const std::size_t segment : order) look_at(segment);
    }
    store_.prefetch(forward);
    for (const std::size_t segment : forward) update(segment);
  }
  std::vector<i64> bytes;
  for (const auto& segment : segments()) bytes.push_back(bytes_of(segment));
  EXPECT_EQ(host_->memory().total.peak, FileStates::memory_for(bytes));
  std::ranges::sort(bytes, std::greater<>());
  EXPECT_LE(FileStates::memory_for(bytes), bytes[0] + 3 * bytes[1] + 4 * (8192 + 65536))
      << "only one slot holds the table";
}

/// Also covers fetches that differ from the expected order, and a long segment that waits for those in its slot.
TEST_F(FileStatesTest, FetchReturnsLastUpdateInAnyOrder) {
  std::mt19937 random(1);
  const std::size_t count = segments().size();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> order(1 + random() % 6);
    for (std::size_t& segment : order) segment = random() % 3 == 0 ? 0 : random() % count;
    if (random() % 4 != 0) store_.prefetch(order);
    if (random() % 8 == 0) order.front() = random() % count;
    for (const std::size_t segment : order) {
      if (random() % 2 == 0)
        look_at(segment);
      else
        update(segment);
    }
  }
}

/// Only one slot is large enough for the table. No layer may take it shortly before the table is needed, wherever the
/// table comes in the order and whichever slots are free.
TEST_F(FileStatesTest, PrefetchReadsEachSegmentOnceBeforeFetch) {
  for (std::size_t segment = 0; segment < segments().size(); ++segment) update(segment);
  for (std::size_t before = 1; before < segments().size(); ++before) {
    std::vector<std::size_t> order(segments().size() - 1);
    std::ranges::generate(order, [s = std::size_t{1}]() mutable { return s++; });
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(before), 0);
    for (std::size_t others = 0; others < 4; ++others) {
      for (std::size_t segment = 1; segment <= others; ++segment) update(segment);
      reads_.clear();
      store_.prefetch(order);
      for (const std::size_t segment : order) {
        ASSERT_EQ(reads(segment), 1) << "segment " << segment << ", the table after " << before << ", " << others;
        update(segment);
      }
    }
  }
}

/// Each fetch evicts the slot of at most one prefetched segment, which is then read again.
TEST_F(FileStatesTest, PrefetchedSegmentsStayWhenOthersAreFetched) {
  for (std::size_t segment = 0; segment < segments().size(); ++segment) update(segment);
  store_.prefetch({0, 1});
  for (const std::size_t segment : {2, 3, 4}) (void)store_.fetch(segment);
  reads_.clear();
  for (const std::size_t segment : {2, 3, 4}) store_.drop(segment);
  look_at(0);
  look_at(1);
  EXPECT_EQ(reads(0), 0);
  EXPECT_EQ(reads(1), 1);
}

/// A snapshot keeps its values through later updates. Each live snapshot costs one more region in the file.
TEST(FileStatesSnapshotTest, KeepsValuesThroughUpdates) {
  const test::DiskFolder folder;
  FileStates store(
      {.host = std::make_shared<CpuDevice>(), .folder = folder.path(), .key = "key", .supports_snapshots = true},
      make_transfer_queue());
  for (int segment = 0; segment < 6; ++segment) store.add({{DType::F32, 10}, {DType::F32, 5'000}});
  store.reserve();
  const auto set = [&](std::size_t segment, double to) {
    std::vector<Tensor> vectors = store.fetch(segment);
    for (Tensor& t : vectors) test::set_values(t, test::Numbers(static_cast<std::size_t>(t.numel()), to));
    store.drop(segment);
  };
  const auto expect_values = [](const StoredArray& storage, double value) {
    CpuDevice device;
    Tensor read = Tensor::empty({storage.numel()}, DType::F32, device);
    storage.read(read);
    EXPECT_THAT(test::to_doubles(read), testing::Each(value));
  };
  for (int round = 0; round < 3; ++round) {
    const double before = 10 * round, after = before + 1;
    for (std::size_t segment = 0; segment < 6; ++segment) set(segment, before + 100 * static_cast<double>(segment));
    std::vector<StoredArray> kept;
    for (std::size_t segment = 0; segment < 6; ++segment)
      kept.push_back(store.stored(segment, 1).part(100, 4'000).snapshot());
    for (int update = 0; update < 3; ++update) {
      for (std::size_t segment = 0; segment < 6; ++segment) set(segment, after);
    }
    for (std::size_t segment = 0; segment < 6; ++segment) {
      expect_values(kept[segment], before + 100 * static_cast<double>(segment));
      expect_values(store.stored(segment, 1), after);
    }
  }
}

}  // namespace
}  // namespace mcpp

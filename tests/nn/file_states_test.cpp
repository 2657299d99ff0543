// States on a disk: what was written into a segment is there when it is next fetched, whatever order segments come in,
// and the memory that they come into is as long as the longest of them.
#include "nn/offload/file_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

/// A table among layers, with vectors of several types.
std::vector<std::vector<StateVector>> segments() {
  std::vector<std::vector<StateVector>> all{{{DType::F32, 400'000}, {DType::BF16, 400'000}}};
  for (int layer = 0; layer < 7; ++layer) all.push_back({{DType::F32, 10'000 + layer}, {DType::F64, 5'000}});
  all.push_back({{DType::BF16, 3}});
  return all;
}

i64 bytes_of(const std::vector<StateVector>& segment) {
  i64 sum = 0;
  for (const StateVector& vector : segment)
    sum += (vector.bytes() + ScratchFile::kAlignment - 1) / ScratchFile::kAlignment * ScratchFile::kAlignment;
  return sum;
}

class FileStatesTest : public testing::Test {
 protected:
  FileStatesTest() {
    for (const auto& segment : segments()) store_.add(segment);
    store_.reserve();
  }

  /// Looks for what the last update of the segment left, and leaves other bytes.
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
  void look_at(std::size_t segment) {
    (void)store_.fetch(segment);
    store_.drop_unchanged(segment);
  }

  const test::DiskFolder folder_;
  std::shared_ptr<CpuDevice> host_ = std::make_shared<CpuDevice>();
  FileStates store_{{.folder = folder_.path(), .key = "key"}, host_, make_transfer_queue()};
  std::vector<int> updates_ = std::vector<int>(segments().size());
};

TEST_F(FileStatesTest, TakeTheMemoryOfTheLongestSegments) {
  std::vector<std::size_t> forward(segments().size());
  std::ranges::generate(forward, [s = std::size_t{0}]() mutable { return s++; });
  const std::vector<std::size_t> backward(forward.rbegin(), forward.rend());
  for (int step = 0; step < 5; ++step) {
    for (const auto& order : {forward, backward}) {
      store_.expect(order);
      for (const std::size_t segment : order) look_at(segment);
    }
    store_.expect(forward);
    for (const std::size_t segment : forward) update(segment);
  }
  std::vector<i64> bytes;
  for (const auto& segment : segments()) bytes.push_back(bytes_of(segment));
  EXPECT_EQ(host_->memory().total.peak, FileStates::memory_of(bytes));
  std::ranges::sort(bytes, std::greater<>());
  EXPECT_LE(FileStates::memory_of(bytes), bytes[0] + 3 * bytes[1] + 4 * (8192 + 65536)) << "room for the table once";
}

/// Also where others were expected than are fetched, and where the longest waits for those in its place.
TEST_F(FileStatesTest, ComeBackAsTheyWereInAnyOrder) {
  std::mt19937 random(1);
  const std::size_t count = segments().size();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> order(1 + random() % 6);
    for (std::size_t& segment : order) segment = random() % 3 == 0 ? 0 : random() % count;
    if (random() % 4 != 0) store_.expect(order);
    if (random() % 8 == 0) order.front() = random() % count;
    for (const std::size_t segment : order) {
      if (random() % 2 == 0)
        look_at(segment);
      else
        update(segment);
    }
  }
}

}  // namespace
}  // namespace mcpp

// Fixture for checkpoint tests: a temporary folder, tensors whose values identify their position, and ranks as threads.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/writer.h"
#include "comm/local.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/shard_list.h"

namespace mcpp {

using test::error_of;

/// Returns the newest intact checkpoint. For each damaged one, logs the warning that a load would log.
inline std::optional<Path> newest_good(const Path& folder, const Log& log) {
  const auto self = make_self_communicator();
  for (const Path& path : load_candidates(folder, *self)) {
    const auto damage = find_damage(path, *self, /*should_verify_checksums=*/true);
    if (!damage) return path;
    log.warn(damage_warning(path, damage->text));
  }
  return std::nullopt;
}

/// Length of several blocks of asynchronous reads and writes; the last one is not aligned.
constexpr i64 kSeveralBlocks = (i64{21} << 20) + 4099;

/// Returns bytes that differ at every position, and for a different `first` also at the same position.
inline std::string numbered_text(i64 bytes, std::size_t first = 0) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(((i + first) * 2654435761U) >> 13);
  return text;
}

class CheckpointTest : public testing::Test {
 protected:
  ~CheckpointTest() override {
    std::error_code ignored;
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, ignored);
  }

  /// Returns the elements of `region` of the global tensor whose element i has the value first + i, in any element
  /// type.
  NamedShard numbered(const std::string& name, const Region& region, DType dtype = DType::F32, i64 first = 0) {
    NamedShard shard(name, region.box, region.flat_begin, region.flat_end,
                     Tensor::empty({region.numel()}, dtype, device_, MemoryClass::Other));
    for_each_run(full_region({region.box.global, Shape(region.box.global.size(), 0), region.box.global}), region,
                 [&](i64 from, i64 to, i64 count) {
                   for (i64 i = 0; i < count; ++i) store(shard.data, to + i, static_cast<double>(first + from + i));
                 });
    return shard;
  }
  NamedShard numbered(const std::string& name, const Shape& shape, DType dtype = DType::F32, i64 first = 0) {
    return numbered(name, full_region({shape, Shape(shape.size(), 0), shape}), dtype, first);
  }

  static void store(const Tensor& t, i64 index, double value) {
    on_type(t.dtype(), [&]<class T>() { t.data<T>()[index] = from_double<T>(value); });
  }
  static double load(const Tensor& t, i64 index) {
    return on_type(t.dtype(), [&]<class T>() { return to_double(t.data<T>()[index]); });
  }

  static bool same_bits(const Tensor& a, const Tensor& b) {
    return a.dtype() == b.dtype() && a.bytes() == b.bytes() &&
           (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.bytes())) == 0);
  }

  /// Saves a checkpoint with one rank.
  Path save(i64 iteration, std::span<const NamedShard> shards, const Retention& retention = {}) {
    RunState state{.iteration = iteration, .consumed_samples = 8 * iteration};
    return test::save_shards(folder_, state, shards, *self_, log_, retention);
  }

  /// Writes without fsync, which would be slow.
  static void overwrite(const Path& path, std::string_view content) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    ASSERT_NE(file, nullptr) << path;
    ASSERT_EQ(std::fwrite(content.data(), 1, content.size(), file), content.size());
    std::fclose(file);
  }

  const test::ScratchFolder scratch_;
  const Path& folder_ = scratch_.path();
  CpuDevice device_;
  Log log_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

/// Runs f(communicator) on ranks that are threads. Returns the error message of each rank, or "".
inline std::vector<std::string> errors_of_ranks(int size, const std::function<void(Communicator&)>& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  run_local_ranks(size, [&](Communicator& world, int rank) {
    errors[static_cast<std::size_t>(rank)] = error_of([&] { f(world); });
  });
  return errors;
}

}  // namespace mcpp

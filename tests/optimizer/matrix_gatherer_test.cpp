// Matrices sharded by tensor parallelism and ZeRO are gathered where one rank processes them, and the result is sent to
// all ranks.
#include "optimizer/matrix_gatherer.h"

#include <gtest/gtest.h>

#include <list>
#include <mutex>
#include <set>

#include "comm/local.h"
#include "parallel/dp/zero.h"
#include "parallel/tp/mappings.h"
#include "tests/support/boxes.h"

namespace mcpp {
namespace {

using test::Numbers;
using test::to_doubles;

constexpr i64 kGroups = 2, kQueries = 6, kHead = 2, kHidden = 5, kFfn = 8;
const Shape kQkv{kGroups, kQueries + 2 * kHead, kHidden}, kUp{2, kFfn, kHidden}, kDown{kHidden, kFfn};

/// Returns element i of a gradient.
double gradient_value(const std::string& name, i64 i) {
  return static_cast<double>(philox_key(2, name, static_cast<u64>(i)) % 1000);
}

/// Weights of one layer as one of `tp` ranks holds them. With four ranks, two of them share keys and values.
struct Slice {
  explicit Slice(Communicator& tp) {
    const i64 keys = kQueries, sharing = std::max<i64>(1, tp.size() / kGroups);
    const std::vector<Box> qkv{slab(kQkv, 1, 0, keys), slab(kQkv, 1, keys, kHead), slab(kQkv, 1, keys + kHead, kHead)};
    if (sharing == 1) {
      add("qkv.weight", split_box(kQkv, 0, tp), qkv);
    } else {
      const i64 group = tp.rank() / sharing, own = kQueries / sharing;
      add("qkv.weight", {kQkv, {group, tp.rank() % sharing * own, 0}, {1, own, kHidden}}, qkv);
      add("qkv.weight", {kQkv, {group, keys, 0}, {1, 2 * kHead, kHidden}}, qkv);
    }
    add("norm.weight", {{kHidden}, {0}, {kHidden}}, {});
    add("up.weight", split_box(kUp, 1, tp), {slab(kUp, 0, 0, 1), slab(kUp, 0, 1, 1)});
    add("down.weight", split_box(kDown, 1, tp), {slab(kDown, 0, 0, kHidden)});
  }
  void add(const std::string& name, const Box& box, const std::vector<Box>& matrices) {
    params.emplace_back(name, box, Init::Normal).matrices = matrices;
    list.push_back({&params.back(), 0});
  }

  std::list<Param> params;
  std::vector<UnitParam> list;
};

/// Processes a matrix: every element becomes the sum of its row and column, weighted by its position.
void add_row_and_column_sums(Tensor& matrix) {
  const i64 rows = matrix.dim(0), columns = matrix.dim(1);
  Numbers x = to_doubles(matrix), row_sums(static_cast<std::size_t>(rows)),
          column_sums(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < x.size(); ++i) {
    row_sums[i / column_sums.size()] += x[i];
    column_sums[i % column_sums.size()] += x[i];
  }
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = row_sums[i / column_sums.size()] - 3 * column_sums[i % column_sums.size()] + static_cast<double>(i);
  test::set_values(matrix, x);
}

/// Returns the full gradient of a parameter after add_row_and_column_sums().
Numbers expected(const Param& param) {
  CpuDevice device;
  const Box all = slab(param.box.global, 0, 0, param.box.global[0]);
  Numbers full(static_cast<std::size_t>(numel(all.shape)));
  for (std::size_t i = 0; i < full.size(); ++i) full[i] = gradient_value(param.name, static_cast<i64>(i));
  for (const Box& box : param.matrices) {
    Tensor matrix = test::tensor_of(test::part_of(full, box), {numel(box.shape) / box.shape.back(), box.shape.back()},
                                    DType::F64, device);
    add_row_and_column_sums(matrix);
    const Numbers transformed = to_doubles(matrix);
    for (std::size_t i = 0; i < transformed.size(); ++i)
      full[static_cast<std::size_t>(test::global_index(box, static_cast<i64>(i)))] = transformed[i];
  }
  return full;
}

class MatrixGathererTest : public testing::TestWithParam<std::tuple<int, int, i64>> {};

TEST_P(MatrixGathererTest, MatchesResultOfSingleRank) {
  const auto [tp_size, shards, bucket_elements] = GetParam();
  std::mutex mutex;
  std::multiset<int> workers;
  run_local_ranks(tp_size * shards, [&, tp_size = tp_size, shards = shards, bucket = bucket_elements](
                                        Communicator& world, int rank) {
    const auto tp = world.split(rank / tp_size, 0), shard = world.split(rank % tp_size, 0),
               self = make_self_communicator();
    CpuDevice device;
    Slice slice(*tp);
    const auto memory = make_param_and_grad_buffer(slice.list, DType::F64, device, {*shard, *self},
                                                   {.zero_stage = shards > 1 ? 1 : 0, .bucket_size = bucket});
    memory->visit_grads([&](const Param& param, i64 first, Tensor values) {
      Numbers part(static_cast<std::size_t>(values.numel()));
      for (std::size_t i = 0; i < part.size(); ++i)
        part[i] = gradient_value(param.name, test::global_index(param.box, first + static_cast<i64>(i)));
      test::set_values(values, part);
    });
    ParamAndGradBuffer* const buffers[]{memory.get()};
    MatrixGatherer matrices(
        buffers, [](const Param& param) { return param.matrices; }, &world);
    matrices.transform([&](Tensor& matrix) {
      add_row_and_column_sums(matrix);
      const std::lock_guard lock(mutex);
      workers.insert(rank);
    });
    memory->visit_grads([&](const Param& param, i64 first, const Tensor& values) {
      const Numbers full = expected(param), part = to_doubles(values);
      for (std::size_t i = 0; i < part.size(); ++i)
        EXPECT_EQ(part[i], full[static_cast<std::size_t>(test::global_index(param.box, first + static_cast<i64>(i)))])
            << param.name << " " << i;
    });
  });
  EXPECT_EQ(workers.size(), 6u) << "each matrix once";
  for (int rank = 0; rank < std::min(6, tp_size * shards); ++rank) EXPECT_GE(workers.count(rank), 1u) << "is idle";
}

INSTANTIATE_TEST_SUITE_P(Layouts, MatrixGathererTest,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 2, 3), testing::Values(0, 100)));

}  // namespace
}  // namespace mcpp

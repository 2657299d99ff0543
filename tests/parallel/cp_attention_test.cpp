// Attention over positions held by several ranks, compared with the same attention on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "comm/local.h"
#include "parallel/cp/context_attention.h"
#include "parallel/state.h"
#include "tensor/transfer.h"
#include "tests/support/positions.h"
#include "tests/support/tensors.h"

namespace mcpp {
namespace {

using test::Numbers;
using test::relative_distance;

struct Case {
  const char* name;
  CpCommType type;
  i64 heads, rings;  ///< SequencePartition

  int ranks() const { return static_cast<int>(heads * rings); }
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

constexpr Case kCases[]{
    {"p2p_2", CpCommType::P2p, 1, 2},          {"p2p_3", CpCommType::P2p, 1, 3},
    {"p2p_4", CpCommType::P2p, 1, 4},          {"gather_2", CpCommType::AllGather, 1, 2},
    {"gather_3", CpCommType::AllGather, 1, 3}, {"a2a_2", CpCommType::A2a, 2, 1},
    {"a2a_4", CpCommType::A2a, 4, 1},          {"a2a_p2p_2x2", CpCommType::A2aP2p, 2, 2},
    {"a2a_p2p_4x2", CpCommType::A2aP2p, 4, 2}, {"a2a_p2p_2x3", CpCommType::A2aP2p, 2, 3},
};

struct Problem {
  i64 seq, batch, groups, q_per_group, head_dim;
  bool is_fused;  ///< otherwise one group, with separate keys and values
  i64 documents;
  double dropout;
  i64 window = 0;
  bool has_sinks = false;

  i64 heads() const { return groups * q_per_group; }
  std::string name() const {
    return str(seq, " positions of ", batch, ", ", groups, " x ", q_per_group, " heads of ", head_dim, ", ", documents,
               " documents, dropout ", dropout, ", window ", window, has_sinks ? ", sinks" : "",
               is_fused ? ", fused" : "");
  }
  Shape queries() const {
    return is_fused ? Shape{seq, batch, groups, q_per_group + 2, head_dim} : Shape{seq, batch, heads(), head_dim};
  }
  Shape keys_values() const { return {seq, batch, 2, head_dim}; }
};

/// Type of the computation, and the type to which the inputs were rounded before.
struct Types {
  DType type, inputs;
};

/// Queries, keys and values of the full sequence, and the gradient of the output.
struct FullTensors {
  FullTensors(const Problem& p, const Types& t, Device& device) {
    const auto draw = [&](const Shape& shape, u64 seed) {
      return test::tensor_of(test::normals(numel(shape), seed, t.inputs), shape, t.type, device);
    };
    qkv.queries = draw(p.queries(), 1), dout = draw({p.seq, p.batch, p.heads() * p.head_dim}, 2);
    if (!p.is_fused) qkv.keys_values = draw(p.keys_values(), 3);
    if (p.has_sinks) sinks = draw({p.heads()}, 7);
    if (p.documents > 0) starts = test::random_starts({}, p.seq, p.batch, p.documents, 4, device);
  }
  Qkv qkv;
  Tensor dout, starts, sinks;
};

AttentionOptions options_for(const Problem& p, const Positions& at) {
  AttentionOptions options{.softmax_scale = 0.3, .queries = at, .keys = at.ranges, .window = p.window, .dropout = {}};
  options.dropout = {.p = static_cast<float>(p.dropout), .key = 9, .samples = {}, .positions = at.ranges};
  for (i64 b = 0; b < p.batch; ++b) options.dropout.samples.push_back(100 + b);
  return options;
}

struct Outcome {
  Tensor out;
  Qkv gradient;
  Tensor d_sinks = {};
};

Outcome attend(const Problem& p, const Qkv& qkv, const Tensor& dout, const Positions& at, const ContextParallel& cp,
               std::shared_ptr<const SamplePartition> partition, const Tensor& sinks) {
  ContextAttention attention(cp, p.heads(), p.groups);
  CoreAttentionOptions local{options_for(p, at), std::move(partition)};
  ContextAttention::SinkGradient d_sinks;
  if (sinks.defined()) {
    local.has_sinks = true, local.sinks = &sinks;
    d_sinks.values = test::random_tensor({p.heads()}, accumulate_dtype(dout.dtype()), dout.device(), 8);  // overwritten
  }
  const CoreAttentionOptions core_options = attention.make_options(local);
  const ContextAttention::SavedAttention saved = attention.forward(qkv, core_options);
  return {attention.output(saved, core_options), attention.backward(dout, saved, core_options, qkv.like(), d_sinks),
          d_sinks.values};
}

/// Partition of the samples, identical on all ranks. If the last two chunks are swapped and there is a window, partial
/// sums for keys pass through a rank that does not see these keys.
enum class Cut : u8 { Zigzag, Consecutive, Swapped, Random };

SamplePartition make_partition(Cut kind, const Problem& p, const SequencePartition& ranks, const Tensor& starts) {
  if (kind == Cut::Zigzag) return SamplePartition::zigzag(ranks, p.seq);
  i64 runs = 1;
  if (kind == Cut::Random) runs = p.seq % (4 * ranks.ranks()) == 0 ? 4 : 3;
  const i64 count = runs * ranks.rings;
  std::vector<i64> chunks(static_cast<std::size_t>(count)), first_keys;
  std::iota(chunks.begin(), chunks.end(), i64{0});
  std::mt19937 random(5);
  if (kind == Cut::Random) std::shuffle(chunks.begin(), chunks.end(), random);
  if (kind == Cut::Swapped) std::swap(chunks[chunks.size() - 2], chunks.back());
  for (auto member = chunks.begin(); member != chunks.end(); member += runs) std::sort(member, member + runs);
  for (i64 i = 0; starts.defined() && i < count; ++i) {
    const std::vector<i32> row = read_values<i32>(starts.slice(i * p.seq / count, i * p.seq / count + 1));
    first_keys.push_back(*std::min_element(row.begin(), row.end()));
  }
  return {ranks, p.seq, chunks, first_keys};
}

/// Copies the rows of a tensor, at positions `at`, into the full tensor.
void scatter(const Tensor& part, const PositionRanges& at, Numbers& full, i64 seq) {
  const Numbers values = test::to_doubles(part);
  full.resize(values.size() / static_cast<std::size_t>(part.dim(0)) * static_cast<std::size_t>(seq));
  const i64 row = part.numel() / part.dim(0);
  for (i64 i = 0; i < part.numel(); ++i)
    full[static_cast<std::size_t>(at.at(i / row) * row + i % row)] = values[static_cast<std::size_t>(i)];
}

struct Numeric {
  Numbers out, queries, keys_values, d_sinks;

  void add(const Outcome& x, const PositionRanges& at, i64 seq) {
    scatter(x.out, at, out, seq);
    scatter(x.gradient.queries, at, queries, seq);
    if (!x.gradient.is_fused()) scatter(x.gradient.keys_values, at, keys_values, seq);
    if (!x.d_sinks.defined()) return;
    const Numbers sums = test::to_doubles(x.d_sinks);
    d_sinks.resize(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) d_sinks[i] += sums[i];
  }
};

Numeric on_ranks(const Problem& p, const Types& t, const Case& c, Cut kind) {
  Numeric result;
  std::mutex mutex;
  run_local_ranks(c.ranks(), [&](Communicator& world, int) {
    CpuDevice device;
    const ParallelState state = make_parallel_state(
        world, {.cp = c.ranks(), .cp_comm_type = c.type, .cp_hierarchy = {c.heads, c.ranks() / c.heads}});
    const ContextParallel cp = state.context_parallel();
    const FullTensors full(p, t, device);
    const i64 rows = p.seq / cp.size();
    const auto partition = std::make_shared<const SamplePartition>(make_partition(kind, p, cp.partition, full.starts));
    const PositionRanges at = partition->rank_positions(cp.rank);
    const auto local_rows = [&](const Tensor& x) { return x.defined() ? select_rows(x, at, rows) : x; };
    Positions positions{at, {}};
    if (full.starts.defined())
      positions.starts = select_rows(full.starts, partition->member_positions(cp.member()), rows * cp.partition.heads);
    const Outcome outcome = attend(p, {local_rows(full.qkv.queries), local_rows(full.qkv.keys_values)},
                                   local_rows(full.dout), positions, cp, partition, full.sinks);
    const std::lock_guard lock(mutex);
    result.add(outcome, at, p.seq);
  });
  return result;
}

/// Computed once for all variants.
const Numeric& on_one_rank(const Problem& p, const Types& t) {
  static std::map<std::string, Numeric> results;
  const auto [found, is_new] = results.try_emplace(str(p.name(), " in ", name_of(t.type), " of ", name_of(t.inputs)));
  if (!is_new) return found->second;
  CpuDevice device;
  const FullTensors full(p, t, device);
  found->second.add(attend(p, full.qkv, full.dout, {{}, full.starts}, {}, nullptr, full.sinks), {}, p.seq);
  return found->second;
}

/// Returns the largest distance of the output and the gradients of queries, keys and values.
double distance(const Numeric& a, const Numeric& b) {
  return std::max({relative_distance(a.out, b.out), relative_distance(a.queries, b.queries),
                   relative_distance(a.keys_values, b.keys_values)});
}

class ContextParallelAttentionTest : public testing::TestWithParam<std::tuple<DType, Case>> {};
INSTANTIATE_TEST_SUITE_P(Variants, ContextParallelAttentionTest,
                         testing::Combine(testing::Values(DType::F64, DType::F32, DType::BF16),
                                          testing::ValuesIn(kCases)),
                         [](const auto& p) {
                           return str(name_of(std::get<0>(p.param)), "_", std::get<1>(p.param).name);
                         });

/// In fp64, results must agree to the last digits. In the other types, the distance from fp64 must be no larger than
/// that of one rank, within random rounding, because partial results are merged in the accumulate type.
TEST_P(ContextParallelAttentionTest, MatchesSingleRank) {
  const auto& [type, c] = GetParam();
  const Problem kProblems[]{
      {96, 2, 4, 2, 16, true, 0, 0},
      {96, 1, 8, 1, 24, true, 5, 0.2},
      {96, 2, 2, 4, 16, true, 3, 0},
      {96, 1, 1, 8, 16, true, 0, 0.1},
      {96, 2, 1, 4, 16, false, 4, 0},
      {480, 1, 4, 1, 32, true, 0, 0},
      {48, 1, 4, 1, 8, true, 40, 0},
      {96, 2, 4, 2, 16, true, 0, 0, 7},
      {96, 1, 4, 2, 16, true, 6, 0.1, 20},
      {96, 1, 2, 2, 16, true, 0, 0, 30},
      {96, 2, 4, 2, 16, true, 6, 0.1, 20, true},
      {96, 1, 1, 8, 16, true, 0, 0, 0, true},
      {96, 2, 1, 4, 16, false, 4, 0, 0, true},
  };
  for (const Problem& p : kProblems) {
    SCOPED_TRACE(p.name());
    const Numeric& truth = on_one_rank(p, {DType::F64, type});
    const double tolerance = type == DType::F64 ? 1e-14 : 1.1 * distance(on_one_rank(p, {type, type}), truth);
    for (const Cut kind : {Cut::Zigzag, Cut::Consecutive, Cut::Swapped, Cut::Random}) {
      if (kind == Cut::Swapped && c.rings == 1) continue;
      const Numeric result = on_ranks(p, {type, type}, c, kind);
      EXPECT_LT(distance(result, truth), tolerance) << static_cast<int>(kind);
      // So few values differ by chance in the other types.
      if (type == DType::F64) {
        EXPECT_LT(relative_distance(result.d_sinks, truth.d_sinks), 1e-13) << static_cast<int>(kind);
      }
    }
  }
}

TEST(SamplePartitionTest, ZigzagAssignsEveryPositionOnceAndEvenly) {
  for (const auto& [heads, rings] : {std::pair{1, 1}, {1, 4}, {4, 1}, {2, 3}, {3, 2}}) {
    const SequencePartition ranks{heads, rings};
    const i64 rows = 12, length = rows * ranks.ranks();
    const SamplePartition partition = SamplePartition::zigzag(ranks, length);
    std::vector<int> owners(static_cast<std::size_t>(length), 0);
    std::vector<i64> work(static_cast<std::size_t>(rings), 0);  // keys seen by the queries of a ring member
    for (i64 rank = 0; rank < ranks.ranks(); ++rank) {
      const PositionRanges at = partition.rank_positions(rank);
      for (i64 row = 0; row < rows; ++row) {
        ++owners.at(static_cast<std::size_t>(at.at(row)));
        work[static_cast<std::size_t>(rank / heads)] += at.at(row) + 1;
      }
    }
    for (const int owner : owners) EXPECT_EQ(owner, 1);
    for (const i64 w : work) EXPECT_EQ(w, work[0]);
  }
}

}  // namespace
}  // namespace mcpp

#include "comm/mpi/transport/mpi_direct.h"

#include <algorithm>

#include "comm/checks.h"
#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// Block size of reductions, which fits in the L1 cache.
constexpr i64 kBlockBytes = 4096;

/// Returns the first element of chunk r, aligned to cache lines so that no two ranks write the same line.
i64 chunk_begin(i64 count, int r, int ranks) {
  constexpr i64 kStep = 64;
  return r == ranks ? count : count / ranks * r / kStep * kStep;
}

std::byte* data_of(const Tensor& t) {
  return static_cast<std::byte*>(t.raw());
}

}  // namespace

/// Rank r reduces chunk r of all tensors and writes the result to all.
bool DirectCollectives::all_reduce(ReduceOp op, Tensor& t) {
  if (!peers_.exchange(t)) return false;
  const int ranks = window_.size(), me = window_.rank();
  const i64 item = size_of(t.dtype()), block = kBlockBytes / item;
  const i64 end = chunk_begin(t.numel(), me + 1, ranks);
  std::vector<const void*> parts(ranks);
  for (i64 begin = chunk_begin(t.numel(), me, ranks); begin < end; begin += block) {
    const i64 n = std::min(block, end - begin);
    for (int r = 0; r < ranks; ++r) parts[r] = peers_[r] + begin * item;
    std::byte* own = peers_[me] + begin * item;
    reduce(op, t.dtype(), parts, own, n);
    for (int r = 0; r < ranks; ++r) copy_bytes(peers_[r] + begin * item, own, n * item);
  }
  window_.barrier();
  return true;
}

bool DirectCollectives::all_gather(const Tensor& shard, Tensor& full) {
  if (!peers_.exchange(shard)) return false;
  const i64 bytes = shard.bytes();
  for (int r = 0; r < window_.size(); ++r) copy_bytes(data_of(full) + r * bytes, peers_[r], bytes);
  window_.barrier();
  return true;
}

bool DirectCollectives::reduce_scatter(const Tensor& full, Tensor& shard) {
  if (!peers_.exchange(full)) return false;
  std::vector<const void*> parts;
  for (int r = 0; r < window_.size(); ++r) parts.push_back(peers_[r] + window_.rank() * shard.bytes());
  reduce(ReduceOp::Sum, full.dtype(), parts, shard.raw(), shard.numel());
  window_.barrier();
  return true;
}

bool DirectCollectives::broadcast(Tensor& t, int root) {
  if (!peers_.exchange(t)) return false;
  copy_bytes(data_of(t), peers_[root], t.bytes());
  window_.barrier();
  return true;
}

bool DirectCollectives::all_to_all(const Tensor& in, Tensor& out) {
  if (!peers_.exchange(in)) return false;
  const i64 bytes = in.bytes() / window_.size();
  for (int r = 0; r < window_.size(); ++r)
    copy_bytes(data_of(out) + r * bytes, peers_[r] + window_.rank() * bytes, bytes);
  window_.barrier();
  return true;
}

bool DirectCollectives::all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out,
                                     std::span<const Part> receive) {
  const int ranks = window_.size(), me = window_.rank();
  const i64 item = size_of(in.dtype());
  const auto table = [this](int rank) { return reinterpret_cast<Part*>(window_.slot(rank)); };
  MCPP_CHECK(ranks * static_cast<i64>(sizeof(Part)) <= SharedWindow::kSlotBytes, "all_to_all_v supports fewer than ",
             ranks, " ranks per node");
  std::ranges::copy(send, table(me));
  const bool is_direct = peers_.exchange(in);
  for (int r = 0; r < ranks; ++r) {
    const Part &part = table(r)[me], &to = receive[r];
    check_counts(part.count, r, to.count, me);
    if (is_direct) copy_bytes(data_of(out) + to.first * item, peers_[r] + part.first * item, part.count * item);
  }
  window_.next_round();
  if (is_direct) window_.barrier();
  return is_direct;
}

}  // namespace mcpp

#include "comm/mpi/pairwise_reducer.h"

#include <algorithm>
#include <utility>

#include "base/integer_math.h"
#include "comm/mpi/transport/mpi_tags.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// Receive buffer size: far more than the network holds in flight.
constexpr i64 kReceiveBufferBytes = i64{8} << 20;
/// For sums up to this size, redundant computation is cheaper than a second message round.
constexpr i64 kSmallBytes = 4096;
/// Part granularity in elements; keeps parts on cache line boundaries.
constexpr i64 kStep = 64;

template <class Byte, class F>
void for_pieces(std::span<Byte> bytes, const F& f) {
  constexpr std::size_t kMaxReducedBytes = kPromptBytes;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kMaxReducedBytes, bytes.size())))
    f(bytes.first(std::min(kMaxReducedBytes, bytes.size())));
}

}  // namespace

PairwiseReducer::PairwiseReducer(const MpiComm& comm, WaitPolicy wait_policy)
    : comm_(comm.get()), rank_(comm.rank()), size_(comm.size()), wait_policy_(std::move(wait_policy)) {}

i64 PairwiseReducer::piece(DType dtype) const {
  return std::max(kStep, kReceiveBufferBytes / size_of(dtype) / size_ / kStep * kStep);
}

std::span<std::byte> PairwiseReducer::receive_buffer(int rank, i64 bytes) {
  receive_buffer_.resize(std::max(receive_buffer_.size(), static_cast<std::size_t>(size_ * bytes)));
  return std::span(receive_buffer_).subspan(static_cast<std::size_t>(rank * bytes), static_cast<std::size_t>(bytes));
}

/// Sends send_to(r) to each other rank r while receiving receive_from(r) from it. Either may be empty.
template <class To, class From>
void PairwiseReducer::swap(const To& send_to, const From& receive_from) {
  std::vector<MPI_Request> requests;
  for (int step = 1; step < size_; ++step) {  // staggered so that ranks start with different peers
    const int source = (rank_ + size_ - step) % size_, destination = (rank_ + step) % size_;
    const std::span<std::byte> in = receive_from(source);
    const std::span<const std::byte> out = send_to(destination);
    for_pieces(in, [&](std::span<std::byte> piece) {
      check_mpi(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, source, mpi_tag::kSum, comm_,
                          &requests.emplace_back()),
                "MPI_Irecv");
    });
    for_pieces(out, [&](std::span<const std::byte> piece) {
      check_mpi(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, destination, mpi_tag::kSum, comm_,
                          &requests.emplace_back()),
                "MPI_Isend");
    });
  }
  wait_all(requests, wait_policy_);
}

/// Reduces the received parts and `own` in rank order. `out` may be `own`.
void PairwiseReducer::sum(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, i64 count) {
  std::vector<const void*> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(r == rank_ ? own : receive_buffer(r, count * size_of(dtype)).data());
  reduce(op, dtype, parts, out, count);
}

void PairwiseReducer::reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count) {
  const i64 item = size_of(dtype);
  for (i64 begin = 0; begin < count; begin += piece(dtype)) {
    const i64 n = std::min(piece(dtype), count - begin);
    const auto part = [&](int r) { return full + (r * count + begin) * item; };
    receive_buffer(0, n * item);  // resizes the buffer before taking addresses
    swap([&](int r) { return std::span(part(r), static_cast<std::size_t>(n * item)); },
         [&](int r) { return receive_buffer(r, n * item); });
    sum(ReduceOp::Sum, dtype, part(rank_), shard + begin * item, n);
  }
}

void PairwiseReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const i64 item = size_of(dtype);
  if (count * item <= kSmallBytes) return all_reduce_small(op, dtype, data, count);
  const i64 share = round_up(ceil_div(count, size_), kStep);  // the last shares may be smaller
  for (i64 begin = 0; begin < share; begin += piece(dtype)) {
    const auto part = [&](int r) {
      const i64 end = std::min(count, (r + 1) * share), first = std::min(end, r * share + begin);
      const i64 last = std::min(end, first + piece(dtype));
      return std::span(data + first * item, static_cast<std::size_t>((last - first) * item));
    };
    const std::span<std::byte> own = part(rank_);
    const auto own_bytes = static_cast<i64>(own.size());
    receive_buffer(0, own_bytes);  // resizes the buffer before taking addresses
    swap([&](int r) { return std::span<const std::byte>(part(r)); },
         [&](int r) { return receive_buffer(r, own_bytes); });
    sum(op, dtype, own.data(), own.data(), own_bytes / item);
    swap([&](int) { return std::span<const std::byte>(own); }, part);
  }
}

/// Every rank computes the whole reduction.
void PairwiseReducer::all_reduce_small(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const std::span<std::byte> all(data, static_cast<std::size_t>(count * size_of(dtype)));
  const auto bytes = static_cast<i64>(all.size());
  receive_buffer(0, bytes);
  swap([&](int) { return std::span<const std::byte>(all); }, [&](int r) { return receive_buffer(r, bytes); });
  sum(op, dtype, data, data, count);
}

}  // namespace mcpp

#include "comm/mpi/mpi_gather.h"

#include <algorithm>
#include <map>
#include <utility>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

ChunkChain::ChunkChain(const MpiComm& comm, ChainPosition position, int tag, const WaitPolicy& wait_policy)
    : comm_(comm.get()), me_(comm.rank()), tag_(tag), position_(position), wait_policy_(wait_policy) {}

void ChunkChain::submit_to_all(std::span<std::byte> chunk) {
  if (me_ != position_.first) {
    chunks_.push_back(chunk);
    receive(chunk, position_.source, arrived_.emplace_back());
  } else if (position_.next >= 0) {
    send(chunk, position_.next);
  }
}

void ChunkChain::submit_to(int rank, std::span<std::byte> chunk) {
  if (rank == position_.first || chunk.empty()) return;
  if (me_ == position_.first)
    send(chunk, rank);
  else if (me_ == rank)
    receive(chunk, position_.first, requests_.emplace_back());
}

bool ChunkChain::forward_received() {
  if (position_.next < 0) return true;
  for (; num_forwarded_ < chunks_.size(); ++num_forwarded_) {
    int has_arrived = 0;
    check_mpi(MPI_Test(&arrived_[num_forwarded_], &has_arrived, MPI_STATUS_IGNORE), "MPI_Test");
    if (!has_arrived) return false;
    send(chunks_[num_forwarded_], position_.next);
  }
  return true;
}

void ChunkChain::finish() {
  while (position_.next >= 0 && num_forwarded_ < chunks_.size()) {
    wait_all({&arrived_[num_forwarded_], 1}, wait_policy_);
    forward_received();
  }
  wait_all(arrived_, wait_policy_);
  wait_all(requests_, wait_policy_);
}

void ChunkChain::send(std::span<std::byte> chunk, int rank) {
  check_mpi(
      MPI_Isend(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, rank, tag_, comm_, &requests_.emplace_back()),
      "MPI_Isend");
}

void ChunkChain::receive(std::span<std::byte> chunk, int rank, MPI_Request& request) const {
  check_mpi(MPI_Irecv(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, rank, tag_, comm_, &request),
            "MPI_Irecv");
}

namespace {

/// Chunk sizes of broadcasts: large enough that MPI does not send eagerly, which would make receivers buffer chunks.
constexpr i64 kMinBroadcastBytes = 512 << 10, kMaxBroadcastBytes = i64{8} << 20;
/// Maximum number of chunks of a part, so that early chunks are forwarded while later chunks arrive; and limits of the
/// chunk size, because small chunks would not use the full bandwidth.
constexpr i64 kChunks = 16, kMinChunkBytes = i64{1} << 20, kMaxChunkBytes = i64{1} << 30;

}  // namespace

NodeGather::NodeGather(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy)
    : comm_(comm), nodes_(nodes), wait_policy_(std::move(wait_policy)) {
  std::map<int, std::vector<int>> ranks_of;  // by node
  std::vector<std::size_t> index_in_node;    // by rank
  for (int r = 0; r < static_cast<int>(nodes.size()); ++r) {
    std::vector<int>& ranks = ranks_of[nodes[r]];
    index_in_node.push_back(ranks.size());
    ranks.push_back(r);
  }
  const int me = comm.rank();
  const std::vector<int>& local_ranks = ranks_of.at(nodes[me]);
  // The rank of a node that receives a part first. Parts are spread evenly over the ranks.
  const auto holder = [&](int part, const std::vector<int>& ranks) {
    return ranks[index_in_node[part] % ranks.size()];
  };
  for (const auto& [node, ranks] : ranks_of) {
    if (node != nodes[me]) inter_node_sends_.push_back({me, holder(me, ranks)});
  }
  for (int part = 0; part < static_cast<int>(nodes.size()); ++part) {
    const int first = nodes[part] == nodes[me] ? part : holder(part, local_ranks);
    if (first != me) intra_node_recvs_.push_back({part, first});
    if (first == me && part != me) inter_node_recvs_.push_back({part, part});
    for (const int rank : local_ranks) {
      if (first == me && rank != me) intra_node_sends_.push_back({part, rank});
    }
  }
}

/// Starts the transfers of bytes [begin, begin + count) of the parts in `messages`.
void NodeGather::start(const std::vector<Message>& messages, bool is_sent, std::byte* full, i64 bytes, i64 begin,
                       i64 count, std::vector<MPI_Request>& requests) const {
  for (const auto& [part, peer] : messages) {
    std::byte* data = full + part * bytes + begin;
    const int n = static_cast<int>(count), tag = mpi_tag::kFirstGather + part;
    MPI_Request* request = &requests.emplace_back();
    if (is_sent)
      check_mpi(MPI_Isend(data, n, MPI_BYTE, peer, tag, comm_.get(), request), "MPI_Isend");
    else
      check_mpi(MPI_Irecv(data, n, MPI_BYTE, peer, tag, comm_.get(), request), "MPI_Irecv");
  }
}

void NodeGather::all_gather(std::byte* full, i64 bytes) {
  const i64 chunk = std::clamp(bytes / kChunks, kMinChunkBytes, kMaxChunkBytes);
  std::vector<std::vector<MPI_Request>> receives;  // inter-node, by chunk
  std::vector<MPI_Request> others;
  const auto for_each_chunk = [&](const auto& f) {
    for (i64 begin = 0; begin < bytes; begin += chunk) f(begin, std::min(chunk, bytes - begin));
  };
  for_each_chunk([&](i64 begin, i64 count) {
    start(inter_node_recvs_, false, full, bytes, begin, count, receives.emplace_back());
    start(intra_node_recvs_, false, full, bytes, begin, count, others);
  });
  for_each_chunk([&](i64 begin, i64 count) { start(inter_node_sends_, true, full, bytes, begin, count, others); });
  for_each_chunk([&](i64 begin, i64 count) {
    wait_all(receives[static_cast<std::size_t>(begin / chunk)], wait_policy_);
    start(intra_node_sends_, true, full, bytes, begin, count, others);
  });
  wait_all(others, wait_policy_);
}

void NodeGather::broadcast(std::byte* data, i64 bytes, int root) {
  const int ranks = static_cast<int>(nodes_.size());
  std::vector<int> chain_ranks(static_cast<std::size_t>(ranks));
  std::ranges::generate(chain_ranks, [&, r = root]() mutable { return r++ % ranks; });
  std::ranges::stable_sort(chain_ranks, {}, [&](int r) { return std::pair(nodes_[r] != nodes_[root], nodes_[r]); });
  const auto me = std::ranges::find(chain_ranks, comm_.rank());
  const ChainPosition position{.first = root,
                               .source = me == chain_ranks.begin() ? -1 : me[-1],
                               .next = me + 1 == chain_ranks.end() ? -1 : me[1]};
  ChunkChain chain(comm_, position, mpi_tag::kBroadcast, wait_policy_);
  const i64 chunk = std::clamp(bytes / kChunks, kMinBroadcastBytes, kMaxBroadcastBytes);
  for (i64 begin = 0; begin < bytes; begin += chunk) {
    chain.submit_to_all({data + begin, static_cast<std::size_t>(std::min(chunk, bytes - begin))});
    chain.forward_received();
  }
  chain.finish();
}

}  // namespace mcpp

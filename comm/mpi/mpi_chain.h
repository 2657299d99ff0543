// Bytes that several ranks need, handed on from one to the next.
#pragma once
#include <span>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Where a rank stands in a row of ranks.
struct ChainPlace {
  int first;         ///< the rank that has the bytes
  int source, next;  ///< that this rank gets them from, and hands them on to; -1: none
};

/// Brings bytes from the first rank to the others, piece by piece, so that they travel while later pieces are still
/// made. No rank sends more than once what it has got once. All name the same pieces in the same order.
class PieceChain {
 public:
  /// `patience` outlives this, as pieces do until finish().
  PieceChain(const MpiComm& comm, ChainPlace place, int tag, const Patience& patience);

  /// For all. The first rank has the piece; the others do not use its memory any more.
  void pass_to_all(std::span<std::byte> piece);
  /// The same, where one rank alone needs it.
  void pass_to(int rank, std::span<std::byte> piece);
  /// Hands on what has come. Whether that was all: what comes after it, by the same ranks and tag, must not go before.
  bool hand_on();
  /// Waits until all have come, and left.
  void finish();

 private:
  void send(std::span<std::byte> piece, int rank);
  void receive(std::span<std::byte> piece, int rank, MPI_Request& request) const;

  MPI_Comm comm_;
  int me_, tag_;
  ChainPlace place_;
  const Patience& patience_;
  std::vector<std::span<std::byte>> pieces_;  // that come from the source
  std::vector<MPI_Request> arrived_;          // of each
  std::size_t handed_on_ = 0;
  std::vector<MPI_Request> others_;
};

}  // namespace mcpp

#include "comm/mpi/mpi_chain.h"

namespace mcpp {

PieceChain::PieceChain(const MpiComm& comm, ChainPosition place, int tag, const WaitPolicy& wait_policy)
    : comm_(comm.get()), me_(comm.rank()), tag_(tag), place_(place), wait_policy_(wait_policy) {}

void PieceChain::submit_to_all(std::span<std::byte> piece) {
  if (me_ != place_.first) {
    pieces_.push_back(piece);
    receive(piece, place_.source, arrived_.emplace_back());
  } else if (place_.next >= 0) {
    send(piece, place_.next);
  }
}

void PieceChain::submit_to(int rank, std::span<std::byte> piece) {
  if (rank == place_.first || piece.empty()) return;
  if (me_ == place_.first)
    send(piece, rank);
  else if (me_ == rank)
    receive(piece, place_.first, others_.emplace_back());
}

bool PieceChain::forward_received() {
  if (place_.next < 0) return true;
  for (; num_forwarded_ < pieces_.size(); ++num_forwarded_) {
    int has_come = 0;
    check_mpi(MPI_Test(&arrived_[num_forwarded_], &has_come, MPI_STATUS_IGNORE), "MPI_Test");
    if (!has_come) return false;
    send(pieces_[num_forwarded_], place_.next);
  }
  return true;
}

void PieceChain::finish() {
  while (place_.next >= 0 && num_forwarded_ < pieces_.size()) {
    wait_all({&arrived_[num_forwarded_], 1}, wait_policy_);
    forward_received();
  }
  wait_all(arrived_, wait_policy_);
  wait_all(others_, wait_policy_);
}

void PieceChain::send(std::span<std::byte> piece, int rank) {
  check_mpi(
      MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, rank, tag_, comm_, &others_.emplace_back()),
      "MPI_Isend");
}

void PieceChain::receive(std::span<std::byte> piece, int rank, MPI_Request& request) const {
  check_mpi(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, rank, tag_, comm_, &request),
            "MPI_Irecv");
}

}  // namespace mcpp

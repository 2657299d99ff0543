#include "comm/mpi/mpi_chain.h"

namespace mcpp {

PieceChain::PieceChain(const MpiComm& comm, ChainPlace place, int tag, const Patience& patience)
    : comm_(comm.get()), me_(comm.rank()), tag_(tag), place_(place), patience_(patience) {}

void PieceChain::pass_to_all(std::span<std::byte> piece) {
  if (me_ != place_.first) {
    pieces_.push_back(piece);
    receive(piece, place_.source, arrived_.emplace_back());
  } else if (place_.next >= 0) {
    send(piece, place_.next);
  }
}

void PieceChain::pass_to(int rank, std::span<std::byte> piece) {
  if (rank == place_.first || piece.empty()) return;
  if (me_ == place_.first)
    send(piece, rank);
  else if (me_ == rank)
    receive(piece, place_.first, others_.emplace_back());
}

bool PieceChain::hand_on() {
  if (place_.next < 0) return true;
  for (; handed_on_ < pieces_.size(); ++handed_on_) {
    int has_come = 0;
    check_mpi(MPI_Test(&arrived_[handed_on_], &has_come, MPI_STATUS_IGNORE), "MPI_Test");
    if (!has_come) return false;
    send(pieces_[handed_on_], place_.next);
  }
  return true;
}

void PieceChain::finish() {
  while (place_.next >= 0 && handed_on_ < pieces_.size()) {
    wait_all({&arrived_[handed_on_], 1}, patience_);
    hand_on();
  }
  wait_all(arrived_, patience_);
  wait_all(others_, patience_);
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

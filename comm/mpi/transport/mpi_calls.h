// MPI's C interface with errors as exceptions and handles that free themselves.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {

/// Throws PeerLost with MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// How a thread waits for other ranks: how often it looks before it gives its core away, and how often then before it
/// sleeps between two looks; and who may tell it that nobody will come.
struct Patience {
  int spins = 0;
  int yields = 2000;  ///< some hundred microseconds: what most messages need
  std::stop_token stop = {};
  /// How many threads have nothing to do until it is over; while there is none it sleeps at once. Null: this one.
  std::shared_ptr<const std::atomic<int>> idle = {};
  /// What it does before each look: what its peer waits for may be for this rank to do. Null: nothing.
  std::function<void()> meanwhile = nullptr;

  /// Throws PeerLost once it was told to stop.
  void check() const;
};

/// A wait for other ranks, between two looks.
class Waiting {
 public:
  enum class Step { Look, Yield, Sleep };

  explicit Waiting(const Patience& patience) : patience_(patience) {}
  /// What to do before the next look, which is more than what is done meanwhile.
  Step next();
  /// Does it, and throws as Patience::check() does.
  void pause();

 private:
  const Patience& patience_;
  int looks_ = 0;
};

/// Whether all are, after MPI has moved what it can.
bool are_complete(std::span<MPI_Request> requests, MPI_Status* statuses = MPI_STATUSES_IGNORE);
/// Waits until all are.
void wait_all(std::span<MPI_Request> requests, const Patience& patience, MPI_Status* statuses = MPI_STATUSES_IGNORE);

/// Starts `call(request)` and waits for it.
template <class Call>
void complete(const char* name, const Patience& patience, const Call& call) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(call(&request), name);
  wait_all({&request, 1}, patience);
}

/// MPI moves large messages only inside its own calls. The peer that this rank waits for may itself wait for one that
/// this rank, or another in a barrier, has sent.
void let_messages_move();

/// The rank of this process in the group, and the number of its ranks.
int rank_in(MPI_Comm comm);
int ranks_of(MPI_Comm comm);

/// Whether freeing an MPI object, in which all ranks take part, would return: not while an error unwinds the stack.
inline bool can_free() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return !finalized && std::uncaught_exceptions() == 0;
}

/// An owned MPI_Comm whose calls return errors.
class MpiComm {
 public:
  MpiComm() = default;
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {
    if (comm_ != MPI_COMM_NULL) check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiComm& operator=(MpiComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~MpiComm() {
    if (comm_ != MPI_COMM_NULL && can_free()) MPI_Comm_free(&comm_);
  }
  static MpiComm split(MPI_Comm comm, int color, int key);

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_in(comm_); }
  int size() const { return ranks_of(comm_); }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Bytes that MPI libraries send at once, headers and all within the 64 KiB that Open MPI sends so over TCP. Larger
/// messages wait for an answer, and that, where both sides send, behind all that goes the other way.
constexpr i64 kPromptBytes = 60 << 10;

/// Of a message.
constexpr i64 kMostBytes = i64{1} << 30;

/// Calls f(begin, bytes) for pieces of at most so many bytes.
template <class F>
void in_messages(i64 bytes, F&& f, i64 most = kMostBytes) {
  for (i64 begin = 0; begin < bytes; begin += most) f(begin, static_cast<int>(std::min(most, bytes - begin)));
}

}  // namespace mcpp

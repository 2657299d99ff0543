// MPI's C interface with errors as exceptions and owning handles.
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

/// Throws PeerLost with MPI's message unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// Waiting policy of a thread: number of polls before it yields its core, number of yields before it sleeps between
/// polls, and how it is canceled.
struct WaitPolicy {
  int spins = 0;
  int yields = 2000;  ///< a few hundred microseconds, enough for typical messages
  std::stop_token stop = {};
  /// Number of idle threads. The waiting thread sleeps immediately while this number is 0. Null counts the calling
  /// thread as idle.
  std::shared_ptr<const std::atomic<int>> idle = {};
  /// Called before each poll, because the peer may be waiting for work of this rank. May be null.
  std::function<void()> progress_callback = nullptr;

  /// Throws PeerLost if a stop was requested.
  void check() const;
};

/// State of a poll loop that waits for other ranks.
class PollLoop {
 public:
  enum class Step { Poll, Yield, Sleep };

  explicit PollLoop(const WaitPolicy& wait_policy) : wait_policy_(wait_policy) {}
  /// Returns the action to take before the next poll, in addition to `progress_callback`.
  Step next();
  /// Performs the next step. Throws like WaitPolicy::check().
  void pause();

 private:
  const WaitPolicy& wait_policy_;
  int poll_count_ = 0;
};

/// Progresses MPI and returns true if all requests are complete.
bool are_complete(std::span<MPI_Request> requests, MPI_Status* statuses = MPI_STATUSES_IGNORE);
/// Waits until all requests are complete.
void wait_all(std::span<MPI_Request> requests, const WaitPolicy& wait_policy,
              MPI_Status* statuses = MPI_STATUSES_IGNORE);

/// Calls `call(request)`, which starts an operation, and waits for its completion.
template <class Call>
void complete(const char* name, const WaitPolicy& wait_policy, const Call& call) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(call(&request), name);
  wait_all({&request, 1}, wait_policy);
}

/// Progresses MPI. MPI moves large messages only inside its own calls, and the awaited peer may itself wait for a
/// message from this rank.
void drive_mpi_progress();

/// Return the rank of this process in the group, and the size of the group.
int comm_rank(MPI_Comm comm);
int comm_size(MPI_Comm comm);

/// Returns true if MPI objects may be freed. Freeing is collective, so it is not allowed after MPI_Finalize or while an
/// exception unwinds the stack.
inline bool can_free() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return !finalized && std::uncaught_exceptions() == 0;
}

/// Owned MPI_Comm whose calls return errors.
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
  int rank() const { return comm_rank(comm_); }
  int size() const { return comm_size(comm_); }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Maximum payload that MPI libraries send eagerly, with headers within Open MPI's 64 KiB limit for TCP. Larger
/// messages need a handshake, which is queued behind traffic in the other direction.
constexpr i64 kEagerBytes = 60 << 10;

/// Maximum size of one MPI message.
constexpr i64 kMaxMessageBytes = i64{1} << 30;

/// Calls f(begin, bytes) for chunks of at most `max_bytes` bytes.
template <class F>
void for_each_message(i64 bytes, F&& f, i64 max_bytes = kMaxMessageBytes) {
  for (i64 begin = 0; begin < bytes; begin += max_bytes) f(begin, static_cast<int>(std::min(max_bytes, bytes - begin)));
}

}  // namespace mcpp

namespace mcpp::mpi_tag {

// Message tags of MPI, one for each kind of message of a group.

constexpr int kMessage = 0, kExchange = 1, kSum = 2, kBroadcast = 3;
/// Tags of offers, used in rotation. There are more tags than offers in flight, so offers can be accepted in any order.
/// Answers use the next kOffers tags.
constexpr int kFirstOffer = 16, kOffers = 2040;
/// Tag of part 0 of a gather; part r uses kFirstGather + r.
constexpr int kFirstGather = 4096;
static_assert(kFirstOffer + 2 * kOffers <= kFirstGather);

}  // namespace mcpp::mpi_tag

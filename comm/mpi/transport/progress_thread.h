// A thread that carries on what ranks of several machines do together, while they compute. MPI moves nothing outside of
// its own calls.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// A message that was copied out of its tensor and is on its way. The copy is no tensor: the group may outlive the
/// device.
struct Outgoing {
  explicit Outgoing(i64 bytes);

  std::unique_ptr<std::byte[]> copy;
  i64 capacity;
  std::vector<MPI_Request> requests;

  bool is_done();
};

/// One for all groups of a world. Operations run one after another, in the order in which they were started: on all
/// ranks the same (Communicator), so that none waits for one that waits for it. The thread sleeps between two looks, as
/// its core belongs to those who compute; a thread that waits for an operation runs what nobody has begun itself, and
/// then both look as often as they can. MPI must allow calls from several threads at a time.
class ProgressThread {
 public:
  /// spins: of one that waits for an operation and runs it itself.
  explicit ProgressThread(int spins);
  /// After all works were waited for. Waits until what it carries has left.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Runs `operation` and drops it, with the tensors that it holds; wait() throws what it threw.
  Work start(std::function<void()> operation);
  /// Memory for a message of so many bytes: that of one that has left, as new pages cost more than a copy.
  Outgoing room_for(i64 bytes);
  /// Keeps the message until it has left. A failure comes out of the next call.
  void carry(Outgoing message);
  /// Calls it again and again, until it says that it has nothing left to do. It calls nothing of this.
  void carry(std::function<bool()> move_on);
  /// Of all that waits for other ranks, here or inside of a machine (Patience): does so for what is carried, unless
  /// another thread is at it. For as long as there are messages.
  std::function<void()> meanwhile() const;
  /// As long as the caller keeps what it gets, messages to this rank move on.
  std::shared_ptr<void> expect_message();
  /// As long as the caller keeps what it gets, it makes MPI move itself, and the thread need not.
  std::shared_ptr<void> look();

  /// For what waits inside of an operation.
  Patience patience() const {
    return {.spins = spins_, .stop = stop_.get_token(), .idle = {state_, &state_->idle}, .meanwhile = meanwhile()};
  }
  /// While an error unwinds the stack: runs nothing more, so that what operations refer to may go.
  void give_up() noexcept;

 private:
  struct Job {
    std::function<void()> operation;
    std::promise<void> result;
    /// What it threw, or null.
    std::exception_ptr run();
  };
  /// What a Work holds. When that goes without having waited, as an error unwinds the stack, tensors and devices go
  /// next: then nothing more runs.
  struct Started {
    std::future<void> result;
    std::stop_source stop;
    ~Started();
  };
  /// What the thread uses, which may outlive this when it does not come back from MPI.
  struct State {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::deque<Job> jobs;
    bool is_running = false;    ///< one of them, which is no longer in the list
    std::atomic<int> idle = 0;  ///< threads that wait for one
    std::list<Outgoing> carried, spare;
    std::list<std::function<bool()>> moved_on;  ///< what is to be called
    std::atomic<bool> has_to_send = false;      ///< there is some of these
    int expected = 0;
    std::atomic<int> looking = 0;
    bool sleeps = false;         ///< the thread, until it is told of something
    bool is_last = false;        ///< it ends once nothing is left to do
    bool is_over = false;        ///< it has ended before that: nothing more moves
    std::exception_ptr failure;  ///< of a message: what comes out of the next call
    std::exception_ptr cause;    ///< of the first operation that failed, for all that cannot be done then

    void rethrow_failure() const;
    void note_failure();
  };
  static void run(State& state, const std::stop_token& stop);
  static void run_next(State& state, std::unique_lock<std::mutex>& lock);
  static void wait_for(State& state, std::future<void>& result);
  static void give_up_jobs(State& state);
  static void settle(State& state);
  static void move(State& state, std::unique_lock<std::mutex>& lock);
  template <class Change>
  void tell(const Change& change);

  int spins_;
  std::shared_ptr<State> state_;
  std::stop_source stop_;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace mcpp

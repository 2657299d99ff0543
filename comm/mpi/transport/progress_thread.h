// Progress thread for inter-node communication. MPI makes progress only inside its own calls, so this thread calls MPI
// while the rank computes.
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

/// Message in flight that was copied out of its tensor. The copy is not a tensor, because the group may outlive the
/// device.
struct InFlightSend {
  explicit InFlightSend(i64 bytes);

  std::unique_ptr<std::byte[]> copy;
  i64 capacity;
  std::vector<MPI_Request> requests;

  bool is_done();
};

/// Executor of inter-node operations, one for all groups of a world. Operations run one at a time in the order in which
/// they were started, which is identical on all ranks (Communicator), so they cannot deadlock. The thread sleeps
/// between polls to leave its core to computation. A thread that waits for an operation runs it itself if it has not
/// started; then both poll continuously. Requires MPI_THREAD_MULTIPLE.
class ProgressThread {
 public:
  /// `spins` applies to threads that wait for an operation and run it themselves.
  explicit ProgressThread(int spins);
  /// Waits until all messages in flight have been sent. Call wait() of every Work first.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Enqueues `operation`, which is destroyed, together with its tensors, immediately after it ran. wait() rethrows its
  /// exception.
  Work start(std::function<void()> operation);
  /// Returns a buffer of at least `bytes` bytes, reused from a sent message if possible, because new pages cost more
  /// than a copy.
  InFlightSend acquire_send_buffer(i64 bytes);
  /// Keeps the message until it has been sent. A failure is rethrown by the next call.
  void keep_until_sent(InFlightSend message);
  /// Calls `make_progress` repeatedly until it returns true. `make_progress` must not call methods of this class.
  void keep_until_sent(std::function<bool()> make_progress);
  /// Returns a callback for every wait for other ranks (WaitPolicy::progress_callback), also within a node. It
  /// progresses the messages in flight, unless another thread is doing so.
  std::function<void()> progress_callback() const;
  /// Progresses messages to this rank while the returned token is held.
  std::shared_ptr<void> expect_message();
  /// Makes the thread poll less often while the returned token is held, because its holder calls MPI itself.
  std::shared_ptr<void> hold_polling();

  /// Returns the waiting policy for waits inside an operation.
  WaitPolicy wait_policy() const {
    return {.spins = spins_,
            .stop = stop_.get_token(),
            .idle = {state_, &state_->idle},
            .progress_callback = progress_callback()};
  }
  /// Stops running operations while an exception unwinds the stack, so that the objects they refer to may be destroyed.
  void cancel() noexcept;

 private:
  struct Job {
    std::function<void()> operation;
    std::promise<void> result;
    /// Returns the exception thrown by the operation, or null.
    std::exception_ptr run();
  };
  /// State of a Work. If destroyed without wait(), while an exception unwinds the stack, it stops the thread, because
  /// tensors and devices are destroyed next.
  struct PendingOperation {
    std::future<void> result;
    std::stop_source stop;
    ~PendingOperation();
  };
  /// State of the thread, which outlives the ProgressThread if the thread does not return from MPI.
  struct State {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::deque<Job> jobs;
    bool is_running = false;    ///< an operation is running; it is no longer in `jobs`
    std::atomic<int> idle = 0;  ///< number of threads that wait for an operation
    std::list<InFlightSend> in_flight_sends, spare_buffers;
    std::list<std::function<bool()>> in_flight_callbacks;  ///< callbacks that have not returned true yet
    std::atomic<bool> has_to_send = false;                 ///< `in_flight_sends` or `in_flight_callbacks` is not empty
    int num_expected = 0;
    std::atomic<int> polling_holds = 0;
    bool is_sleeping = false;        ///< the thread sleeps until notified
    bool should_exit = false;        ///< the thread exits once it has no more work
    bool is_stopped = false;         ///< the thread was stopped early; no more progress
    std::exception_ptr failure;      ///< failure of a message; rethrown by the next call
    std::exception_ptr first_error;  ///< error of the first failed operation; fails all later ones

    void rethrow_failure() const;
    void record_failure();
  };
  static void run(State& state, const std::stop_token& stop);
  static void run_next(State& state, std::unique_lock<std::mutex>& lock);
  static void wait_for(State& state, std::future<void>& result);
  static void fail_jobs(State& state);
  static void recycle_sent_buffers(State& state);
  static void make_progress(State& state, std::unique_lock<std::mutex>& lock);
  template <class Change>
  void update_state(const Change& change);

  int spins_;
  std::shared_ptr<State> state_;
  std::stop_source stop_;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace mcpp

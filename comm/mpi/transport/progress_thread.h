// A thread that carries on what ranks of several machines do together, while they compute. MPI moves nothing outside of
// its own calls.
#pragma once
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
  std::unique_ptr<std::byte[]> copy;
  i64 capacity;
  std::vector<MPI_Request> requests;

  bool is_done();
};

/// One for all groups of a world. Operations run one after another, in the order in which they were started: on all
/// ranks the same (Communicator), so that none waits for one that waits for it. The thread sleeps between two looks, as
/// its core belongs to those who compute. MPI must allow calls from several threads at a time.
class ProgressThread {
 public:
  ProgressThread();
  /// After all works were waited for. Waits until what it carries has left.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Runs `operation` and drops it, with the tensors that it holds; wait() throws what it threw.
  Work start(std::function<void()> operation);
  /// Keeps the message until it has left. A failure comes out of the next call.
  void carry(Outgoing message);
  /// As long as the caller keeps what it gets, messages to this rank move on.
  std::shared_ptr<void> expect_message();

  /// For what waits inside of an operation.
  Patience patience() const { return {.spins = 0, .yields = 0, .stop = stop_.get_token()}; }
  /// While an error unwinds the stack: runs nothing more, so that what operations refer to may go.
  void give_up() noexcept;

 private:
  struct Job {
    std::function<void()> operation;
    std::promise<void> result;
    void run();
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
    std::list<Outgoing> carried;
    int expected = 0;
    bool is_last = false;        ///< it ends once nothing is left to do
    std::exception_ptr failure;  ///< of a message
  };
  static void run(State& state, const std::stop_token& stop);
  static std::exception_ptr move(std::list<Outgoing>& leaving);
  template <class Change>
  void tell(const Change& change);

  std::shared_ptr<State> state_;
  std::stop_source stop_;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace mcpp

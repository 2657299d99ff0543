#include "comm/mpi/transport/progress_thread.h"

#include <chrono>
#include <utility>

#include "comm/watch/quiet_thread.h"

namespace mcpp {
namespace {

using namespace std::chrono_literals;

/// Between two looks at messages that are on their way.
constexpr auto kNap = 100us;
/// What one that is told to end is given to come back from MPI.
constexpr auto kGiveUp = 1s;

}  // namespace

bool Outgoing::is_done() {
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  return done != 0;
}

ProgressThread::ProgressThread() : state_(std::make_shared<State>()) {
  std::promise<void> ended;
  ended_ = ended.get_future();
  thread_ = start_quiet_thread([state = state_, stop = stop_.get_token(), ended = std::move(ended)]() mutable {
    run(*state, stop);
    ended.set_value();
  });
}

ProgressThread::~ProgressThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_last = true;
  }
  state_->changed.notify_all();
  thread_.join();
}

void ProgressThread::give_up() noexcept {
  if (!thread_.joinable()) return;
  stop_.request_stop();
  if (ended_.wait_for(kGiveUp) == std::future_status::ready)
    thread_.join();
  else
    thread_.detach();  // it makes a group, which its peers never will
}

template <class Change>
void ProgressThread::tell(const Change& change) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->failure) std::rethrow_exception(state_->failure);
    change(*state_);
  }
  state_->changed.notify_all();
}

ProgressThread::Started::~Started() {
  if (!result.valid() || result.wait_for(0s) == std::future_status::ready) return;
  stop.request_stop();
  result.wait_for(kGiveUp);
}

Work ProgressThread::start(std::function<void()> operation) {
  Job job{.operation = std::move(operation), .result = {}};
  const std::shared_ptr<Started> started(new Started{.result = job.result.get_future(), .stop = stop_});
  tell([&](State& state) { state.jobs.push_back(std::move(job)); });
  return Work([started] { started->result.get(); });
}

void ProgressThread::carry(Outgoing message) {
  tell([&](State& state) { state.carried.push_back(std::move(message)); });
}

std::shared_ptr<void> ProgressThread::expect_message() {
  tell([](State& state) { ++state.expected; });
  return {nullptr, [state = state_](void*) {
            const std::lock_guard lock(state->mutex);
            --state->expected;
          }};
}

void ProgressThread::Job::run() {
  std::exception_ptr error;
  try {
    operation();
  } catch (...) {
    error = std::current_exception();
  }
  operation = nullptr;  // with the tensors that it holds, before anybody hears of it
  if (error)
    result.set_exception(error);
  else
    result.set_value();
}

/// Drops what has left.
std::exception_ptr ProgressThread::move(std::list<Outgoing>& leaving) {
  try {
    leaving.remove_if([](Outgoing& message) { return message.is_done(); });
    if (leaving.empty()) let_messages_move();
    return nullptr;
  } catch (...) {
    leaving.clear();
    return std::current_exception();
  }
}

void ProgressThread::run(State& state, const std::stop_token& stop) {
  std::list<Outgoing> leaving;
  std::unique_lock lock(state.mutex);
  const auto has_job = [&] { return !state.jobs.empty(); };
  const auto has_messages = [&] {
    return !leaving.empty() || !state.carried.empty() || (state.expected > 0 && !state.is_last);
  };
  while (!stop.stop_requested()) {
    leaving.splice(leaving.end(), state.carried);
    if (has_job()) {
      Job job = std::move(state.jobs.front());
      state.jobs.pop_front();
      lock.unlock();
      job.run();
      lock.lock();
    } else if (has_messages()) {
      lock.unlock();
      const std::exception_ptr failure = move(leaving);
      lock.lock();
      if (failure) state.failure = failure;
      state.changed.wait_for(lock, stop, kNap, has_job);
    } else if (state.is_last) {
      return;
    } else {
      state.changed.wait(lock, stop, [&] { return has_job() || has_messages() || state.is_last; });
    }
  }
  state.failure = std::make_exception_ptr(Error(ExitCode::PeerLost, "an operation between machines was given up"));
  state.jobs.clear();
}

}  // namespace mcpp

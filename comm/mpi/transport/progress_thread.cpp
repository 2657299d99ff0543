#include "comm/mpi/transport/progress_thread.h"

#include <chrono>
#include <utility>

#include "comm/watchdog/background_thread.h"

namespace mcpp {
namespace {

using namespace std::chrono_literals;

/// Poll interval while messages are in flight.
constexpr auto kPollInterval = 100us;
/// Poll interval while another thread of the rank polls, to avoid contention.
constexpr auto kLongPollInterval = 1ms;
/// Polls after the last work before sleeping until notified; waking the thread takes longer than a short message.
constexpr int kMaxIdlePolls = 20;
/// Time that a rank gets to wait for an operation it has just started, and so run it itself.
constexpr auto kInlineRunDelay = 20us;
/// Time that the thread gets to return from MPI when it is stopped.
constexpr auto kStopTimeout = 1s;

}  // namespace

InFlightSend::InFlightSend(i64 bytes) : copy(std::make_unique_for_overwrite<std::byte[]>(bytes)), capacity(bytes) {}

bool InFlightSend::is_done() {
  if (!are_complete(requests)) return false;
  requests.clear();
  return true;
}

ProgressThread::ProgressThread(int spins) : spins_(spins), state_(std::make_shared<State>()) {
  std::promise<void> ended;
  ended_ = ended.get_future();
  thread_ = start_background_thread([state = state_, stop = stop_.get_token(), ended = std::move(ended)]() mutable {
    run(*state, stop);
    ended.set_value();
  });
}

ProgressThread::~ProgressThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->should_exit = true;
  }
  state_->changed.notify_all();
  thread_.join();
}

void ProgressThread::cancel() noexcept {
  if (!thread_.joinable()) return;
  stop_.request_stop();
  if (thread_.get_id() == std::this_thread::get_id()) return;  // it ends by itself
  if (ended_.wait_for(kStopTimeout) == std::future_status::ready)
    thread_.join();
  else
    thread_.detach();  // blocked in a collective that its peers never enter
}

template <class Change>
void ProgressThread::update_state(const Change& change) {
  bool is_sleeping = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->rethrow_failure();
    change(*state_);
    is_sleeping = state_->is_sleeping;
  }
  if (is_sleeping) state_->changed.notify_all();  // otherwise it polls soon
}

void ProgressThread::State::rethrow_failure() const {
  if (failure) std::rethrow_exception(failure);
  if (is_stopped && first_error) std::rethrow_exception(first_error);
  if (is_stopped) fail(ExitCode::PeerLost, "an inter-node operation was canceled");
}

/// Records the current exception, unless one is recorded already, and stops sending.
void ProgressThread::State::record_failure() {
  in_flight_sends.clear();
  in_flight_callbacks.clear();
  has_to_send = false;
  if (!failure) failure = std::current_exception();
}

ProgressThread::PendingOperation::~PendingOperation() {
  if (!result.valid() || result.wait_for(0s) == std::future_status::ready) return;
  stop.request_stop();
  result.wait_for(kStopTimeout);
}

Work ProgressThread::start(std::function<void()> operation) {
  Job job{.operation = std::move(operation), .result = {}};
  const std::shared_ptr<PendingOperation> started(
      new PendingOperation{.result = job.result.get_future(), .stop = stop_});
  update_state([&](State& state) { state.jobs.push_back(std::move(job)); });
  return Work([started, state = state_] {
    wait_for(*state, started->result);
    started->result.get();
  });
}

/// Runs the earlier operations and this one, unless another thread does.
void ProgressThread::wait_for(State& state, std::future<void>& result) {
  std::unique_lock lock(state.mutex);
  ++state.idle;
  const struct IdleGuard {
    std::atomic<int>& threads;
    ~IdleGuard() { --threads; }
  } idle_guard{state.idle};
  while (result.wait_for(0s) != std::future_status::ready) {
    if (state.is_stopped && !state.is_running) {
      fail_jobs(state);
    } else if (!state.is_running && !state.jobs.empty()) {
      run_next(state, lock);
      if (state.idle > 1) state.changed.notify_all();
    } else if (state.has_to_send) {  // the thread may be blocked creating a group
      recycle_sent_buffers(state);
      state.changed.wait_for(lock, kPollInterval);
    } else {
      state.changed.wait(lock);
    }
  }
  if (state.idle == 1 && !state.jobs.empty()) state.changed.notify_all();
}

/// Runs the next operation. The caller must notify waiting threads afterwards, but not the progress thread: a needless
/// wake-up costs as much as a short message.
void ProgressThread::run_next(State& state, std::unique_lock<std::mutex>& lock) {
  Job job = std::move(state.jobs.front());
  state.jobs.pop_front();
  state.is_running = true;
  lock.unlock();
  const std::exception_ptr error = job.run();
  lock.lock();
  state.is_running = false;
  if (error && !state.first_error) state.first_error = error;
}

/// Fails all queued operations.
void ProgressThread::fail_jobs(State& state) {
  for (Job& job : state.jobs) {
    try {
      state.rethrow_failure();
    } catch (...) {
      job.result.set_exception(std::current_exception());
    }
  }
  state.jobs.clear();
}

InFlightSend ProgressThread::acquire_send_buffer(i64 bytes) {
  const std::lock_guard lock(state_->mutex);
  recycle_sent_buffers(*state_);
  std::list<InFlightSend>& spare_buffers = state_->spare_buffers;
  auto smallest = spare_buffers.end();
  for (auto buffer = spare_buffers.begin(); buffer != spare_buffers.end(); ++buffer)
    if (buffer->capacity >= bytes && (smallest == spare_buffers.end() || buffer->capacity < smallest->capacity))
      smallest = buffer;
  if (smallest == spare_buffers.end()) {  // all are too small
    spare_buffers.clear();
    return InFlightSend(bytes);
  }
  InFlightSend buffer = std::move(*smallest);
  spare_buffers.erase(smallest);
  return buffer;
}

void ProgressThread::keep_until_sent(InFlightSend message) {
  update_state([&](State& state) {
    state.in_flight_sends.push_back(std::move(message));
    state.has_to_send = true;
  });
}

void ProgressThread::keep_until_sent(std::function<bool()> make_progress) {
  update_state([&](State& state) {
    state.in_flight_callbacks.push_back(std::move(make_progress));
    state.has_to_send = true;
  });
}

std::function<void()> ProgressThread::progress_callback() const {
  return [state = state_] {
    if (!state->has_to_send) return;
    const std::unique_lock lock(state->mutex, std::try_to_lock);
    if (lock.owns_lock()) recycle_sent_buffers(*state);
  };
}

std::shared_ptr<void> ProgressThread::expect_message() {
  update_state([](State& state) { ++state.num_expected; });
  return {nullptr, [state = state_](void*) {
            const std::lock_guard lock(state->mutex);
            --state->num_expected;
          }};
}

std::shared_ptr<void> ProgressThread::hold_polling() {
  ++state_->polling_holds;
  return {nullptr, [state = state_](void*) { --state->polling_holds; }};
}

std::exception_ptr ProgressThread::Job::run() {
  std::exception_ptr error;
  try {
    operation();
  } catch (...) {
    error = std::current_exception();
  }
  operation = nullptr;  // releases its tensors before the result is visible
  if (error)
    result.set_exception(error);
  else
    result.set_value();
  return error;
}

/// Recycles the buffers of sent messages. A failure is rethrown by the next call.
void ProgressThread::recycle_sent_buffers(State& state) {
  try {
    state.in_flight_callbacks.remove_if([](const auto& make_progress) { return make_progress(); });
    for (auto next = state.in_flight_sends.begin(); next != state.in_flight_sends.end();) {
      const auto message = next++;
      if (message->is_done()) state.spare_buffers.splice(state.spare_buffers.end(), state.in_flight_sends, message);
    }
  } catch (...) {
    state.record_failure();
    throw;
  }
  state.has_to_send = !state.in_flight_sends.empty() || !state.in_flight_callbacks.empty();
}

/// Progresses messages. `lock` is held on entry and on return.
void ProgressThread::make_progress(State& state, std::unique_lock<std::mutex>& lock) {
  try {
    recycle_sent_buffers(state);
    if (state.has_to_send) return;
    lock.unlock();
    drive_mpi_progress();
    lock.lock();
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    state.record_failure();
  }
}

void ProgressThread::run(State& state, const std::stop_token& stop) {
  int idle_polls = 0;
  std::unique_lock lock(state.mutex);
  // A waiting thread also runs the operations before its own, sooner than this thread could be notified.
  const auto has_job = [&] { return !state.jobs.empty() && !state.is_running && state.idle == 0; };
  const auto has_messages = [&] { return state.has_to_send || (state.num_expected > 0 && !state.should_exit); };
  const auto sleep_until_poll = [&] {
    const bool is_polled = state.polling_holds > 0 || state.idle > 0;
    state.changed.wait_for(lock, stop, is_polled ? kLongPollInterval : kPollInterval,
                           [&] { return has_job() || (state.should_exit && !state.has_to_send); });
  };
  while (!stop.stop_requested()) {
    if (has_job() || has_messages()) idle_polls = kMaxIdlePolls;
    if (has_job()) {
      state.changed.wait_for(lock, stop, kInlineRunDelay, [&] { return !has_job(); });
      if (has_job()) {
        run_next(state, lock);
        if (state.idle > 0) state.changed.notify_all();
        if (state.has_to_send) make_progress(state, lock);  // also between consecutive operations
      }
    } else if (has_messages()) {
      make_progress(state, lock);
      sleep_until_poll();
    } else if (state.should_exit) {
      return;
    } else if (idle_polls > 0) {
      --idle_polls;
      sleep_until_poll();
    } else {
      state.is_sleeping = true;
      state.changed.wait(lock, stop, [&] { return has_job() || has_messages() || state.should_exit; });
      state.is_sleeping = false;
    }
  }
  state.is_stopped = true;
  if (!state.is_running) fail_jobs(state);  // otherwise the thread running an operation does it
  state.changed.notify_all();
}

}  // namespace mcpp

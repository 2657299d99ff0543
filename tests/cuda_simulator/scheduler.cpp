// Scheduler of queued operations, and the functions of CUDA's runtime for streams and events.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <set>
#include <sstream>

#include "tests/cuda_simulator/capture.h"
#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/memory.h"
#include "tests/cuda_simulator/runtime.h"
#include "tests/cuda_simulator/simulator.h"

struct CUevent_st {
  std::shared_ptr<mcpp::cuda_simulator::EventState> state = std::make_shared<mcpp::cuda_simulator::EventState>();
};

namespace mcpp::cuda_simulator {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Scheduler {
  std::condition_variable_any progress;
  std::vector<cudaStream_t> streams;
  std::map<int, cudaStream_t> default_streams;  // by device
  std::vector<std::pair<std::size_t, std::uint32_t>> free_numbers;
  std::size_t stream_count = 0;
  int live_threads = 0;                               // threads that have created a stream or queued anything
  std::vector<const std::function<bool()>*> waiting;  // conditions of the threads that wait
  std::uint64_t operations = 0, generation = 0;
  VectorClock host_clock;
  std::shared_ptr<const VectorClock> host_snapshot;
  cudaStream_t current = nullptr;  // stream of the operation that runs
  std::set<std::uint64_t> pct_changes;
};

Scheduler& scheduler() {
  static auto* const only = new Scheduler;
  return *only;
}

/// Counts a thread that has queued operations, until it ends.
struct ThreadRegistration {
  ThreadRegistration() { ++scheduler().live_threads; }
  ~ThreadRegistration() {
    const Lock lock(simulator_mutex());
    --scheduler().live_threads;
    scheduler().progress.notify_all();
  }
};

void register_thread() {
  thread_local const ThreadRegistration registration;
}

cudaStream_t new_stream(int priority) {
  register_thread();
  Scheduler& s = scheduler();
  auto* stream = new CUstream_st;
  if (s.free_numbers.empty()) {
    stream->number = ++s.stream_count;
  } else {  // continues the count of the destroyed stream
    std::tie(stream->number, stream->executed) = s.free_numbers.back();
    s.free_numbers.pop_back();
  }
  stream->device = current_device();
  stream->priority = priority;
  stream->pct_priority = random_bits();
  stream->clock.set(stream->number, stream->executed);
  s.streams.push_back(stream);
  return stream;
}

cudaStream_t resolve(cudaStream_t stream) {
  if (stream) return stream;
  cudaStream_t& found = scheduler().default_streams[current_device()];
  if (!found) found = new_stream(0);
  return found;
}

bool is_ready(const Operation& operation) {
  if (operation.waited_event) return operation.waited_event->done >= operation.version;
  return !operation.is_ready || operation.is_ready();
}
bool can_run(cudaStream_t stream) {
  return !stream->queue.empty() && is_ready(stream->queue.front());
}

/// Host clocks change only when a thread has waited, so a snapshot is shared until the next wait.
std::shared_ptr<const VectorClock> host_snapshot() {
  Scheduler& s = scheduler();
  if (!s.host_snapshot) s.host_snapshot = std::make_shared<const VectorClock>(s.host_clock);
  return s.host_snapshot;
}
void join_host(const VectorClock& clock) {
  scheduler().host_clock.join(clock);
  scheduler().host_snapshot = nullptr;
}

void delete_if_finished(cudaStream_t stream);

void run_next(cudaStream_t stream) {
  Scheduler& s = scheduler();
  Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  ++s.operations;
  ++s.generation;
  if (settings().policy == Policy::Pct && s.pct_changes.erase(s.operations)) stream->pct_priority = 0;
  ++stream->executed;
  if (operation.host_clock) stream->clock.join(*operation.host_clock);
  if (operation.waited_event) stream->clock.join(operation.waited_event->clock);
  stream->clock.set(stream->number, stream->executed);
  stream->seconds = std::max(stream->seconds, operation.queued_at);
  if (operation.waited_event) stream->seconds = std::max(stream->seconds, operation.waited_event->seconds);
  name_operation(stream->number, stream->executed, operation.name);
  const cudaStream_t outer = std::exchange(s.current, stream);
  begin_operation({stream->number, stream->executed, &stream->clock, operation.newest_allocation});
  if (operation.run) operation.run();
  if (operation.recorded_event) {
    EventState& event = *operation.recorded_event;
    event.done = std::max(event.done, operation.version);
    event.seconds =
        cost_model() ? stream->seconds : std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count();
    event.clock = stream->clock;
  }
  end_operation();
  s.current = outer;
  s.progress.notify_all();
  delete_if_finished(stream);
}

void delete_if_finished(cudaStream_t stream) {
  if (!stream->is_destroyed || !stream->queue.empty()) return;
  std::erase(scheduler().streams, stream);
  scheduler().free_numbers.emplace_back(stream->number, stream->executed);
  delete stream;
}

std::vector<cudaStream_t> runnable_streams() {
  std::vector<cudaStream_t> found;
  std::ranges::copy_if(scheduler().streams, std::back_inserter(found), can_run);
  return found;
}

/// Returns the stream whose next operation the next one of `stream` waits for, or null if it cannot run now.
cudaStream_t needed_stream(cudaStream_t stream, int depth = 0) {
  constexpr int kMaxDepth = 1000;
  if (!stream || stream->queue.empty() || depth > kMaxDepth) return nullptr;
  const Operation& next = stream->queue.front();
  if (is_ready(next)) return stream;
  if (!next.waited_event) return nullptr;
  for (const cudaStream_t other : scheduler().streams) {
    const bool records = std::ranges::any_of(other->queue, [&](const Operation& o) {
      return o.recorded_event == next.waited_event && o.version == next.version;
    });
    if (records && other != stream) return needed_stream(other, depth + 1);
  }
  return nullptr;
}

/// Returns the stream that runs next while a thread waits for `wanted`.
cudaStream_t choose_stream(cudaStream_t wanted) {
  const std::vector<cudaStream_t> able = runnable_streams();
  if (able.empty()) return nullptr;
  switch (settings().policy) {
    case Policy::Late:
    case Policy::Eager:
      break;
    case Policy::Reverse:  // a larger number is a lower priority; of equals the oldest stream comes last
      return *std::ranges::max_element(able, {}, [](cudaStream_t s) { return std::pair(s->priority, s->number); });
    case Policy::Random:
      return able[random_bits() % able.size()];
    case Policy::Pct:
      return *std::ranges::max_element(able, {}, &CUstream_st::pct_priority);
  }
  if (const cudaStream_t needed = needed_stream(wanted)) return needed;
  return able[random_bits() % able.size()];
}

void progress_after_enqueue() {
  constexpr std::uint64_t kMeanRun = 4;
  const Policy policy = settings().policy;
  while (policy == Policy::Eager ||
         ((policy == Policy::Random || policy == Policy::Pct) && random_bits() % kMeanRun == 0)) {
    const cudaStream_t next = choose_stream(nullptr);
    if (!next) return;
    run_next(next);
  }
}

void draw_pct_changes() {
  constexpr int kChanges = 3;
  constexpr std::uint64_t kHorizon = 5000;  // operations
  if (!scheduler().pct_changes.empty() || scheduler().operations > 0) return;
  for (int i = 0; i < kChanges; ++i) scheduler().pct_changes.insert(1 + random_bits() % kHorizon);
}

}  // namespace

/// Returns true if every thread that could queue an operation waits. A thread whose condition holds is about to wake
/// up. After an injected fault other threads, such as threads that watch for hangs, may end the wait.
static bool all_threads_wait() {
  const Scheduler& s = scheduler();
  const auto is_done = [](const std::function<bool()>* condition) { return (*condition)(); };
  return s.live_threads > 0 && settings().fault_number == 0 && static_cast<int>(s.waiting.size()) >= s.live_threads &&
         std::ranges::none_of(s.waiting, is_done);
}

std::string describe_streams() {
  std::ostringstream text;
  for (const cudaStream_t s : scheduler().streams) {
    if (s->queue.empty()) continue;
    text << "\n  GPU " << s->device << ", stream " << s->number << ": " << s->queue.size() << " queued, next "
         << s->queue.front().name;
    if (s->queue.front().waited_event && s->queue.front().waited_event->stream)
      text << ", recorded on stream " << s->queue.front().waited_event->stream->number;
  }
  return text.str();
}

std::map<std::string, std::uint64_t>& host_calls() {
  static auto* const only = new std::map<std::string, std::uint64_t>;
  return *only;
}
void count_call(const std::string& name) {
  ++host_calls()[name.substr(0, name.find(' '))];
}

void push(cudaStream_t stream, Operation operation) {
  operation.host_clock = host_snapshot();
  if (cost_model()) operation.queued_at = host_seconds();
  resolve(stream)->queue.push_back(std::move(operation));
  ++scheduler().generation;
}

void charge_call() {
  register_thread();
  draw_pct_changes();
  if (const CostModel* model = cost_model()) advance_host_to(host_seconds() + model->launch());
}

void run_by_policy() {
  scheduler().progress.notify_all();
  if (!scheduler().current) progress_after_enqueue();
}

cudaStream_t new_internal_stream(int device) {
  const cudaStream_t stream = new_stream(0);
  stream->device = device;
  return stream;
}

void enqueue(cudaStream_t stream, Operation operation) {
  const Lock lock(simulator_mutex());
  if (!stream && check_default_stream() != cudaSuccess) return;
  if (capture_operation(stream, operation)) return;
  count_call(operation.name);
  charge_call();
  push(stream, std::move(operation));
  run_by_policy();
}

VectorClock current_clock() {
  return scheduler().current ? scheduler().current->clock : scheduler().host_clock;
}
void join_clock(const VectorClock& clock) {
  if (scheduler().current) scheduler().current->clock.join(clock);
}
double stream_seconds() {
  return scheduler().current ? scheduler().current->seconds : 0;
}
void spend(double seconds) {
  if (scheduler().current) scheduler().current->seconds += seconds;
}
void advance_stream_to(double seconds) {
  if (scheduler().current) scheduler().current->seconds = std::max(scheduler().current->seconds, seconds);
}
void notify_progress() {
  ++scheduler().generation;
  scheduler().progress.notify_all();
}

void wait_until(Lock& lock, cudaStream_t stream, const std::function<bool()>& is_done, const char* call) {
  Scheduler& s = scheduler();
  auto deadline = SteadyClock::now() + std::chrono::seconds(settings().patience);
  while (!is_done()) {
    if (const cudaStream_t next = choose_stream(stream)) {
      run_next(next);
      continue;
    }
    const std::uint64_t seen = s.generation;
    s.waiting.push_back(&is_done);
    const bool is_deadlock = all_threads_wait();
    if (is_deadlock || SteadyClock::now() >= deadline) {
      report("%s: deadlock: no operation can run%s%s", call,
             is_deadlock ? ", and every thread waits" : " for a long time", describe_streams().c_str());
      std::erase(s.waiting, &is_done);
      return;  // only if reports do not abort
    }
    s.progress.wait_for(lock, std::chrono::milliseconds(100));
    std::erase(s.waiting, &is_done);
    if (s.generation != seen) deadline = SteadyClock::now() + std::chrono::seconds(settings().patience);
  }
}

bool is_host_range_queued(const void* begin, std::size_t bytes) {
  const auto overlaps = [&](const Operation& o) {
    const auto *a = static_cast<const char*>(o.host.begin), *b = static_cast<const char*>(begin);
    return o.host.bytes > 0 && a < b + bytes && b < a + o.host.bytes;
  };
  return std::ranges::any_of(scheduler().streams,
                             [&](cudaStream_t s) { return std::ranges::any_of(s->queue, overlaps); });
}

void drain_stream(Lock& lock, cudaStream_t stream, const char* call) {
  stream = resolve(stream);
  wait_until(
      lock, stream, [&] { return stream->queue.empty(); }, call);
  join_host(stream->clock);
  advance_host_to(stream->seconds);
}

void drain_device(Lock& lock, int device, const char* call) {
  // Destroyed streams are deleted as they become empty, so streams are not held across the wait.
  const auto is_busy = [device](cudaStream_t s) { return s->device == device && !s->queue.empty(); };
  wait_until(
      lock, nullptr, [&] { return std::ranges::none_of(scheduler().streams, is_busy); }, call);
  for (const cudaStream_t stream : scheduler().streams)
    if (stream->device == device) join_host(stream->clock), advance_host_to(stream->seconds);
}

/// Returns true if by the virtual clock an event completes after the calling thread's time, which advances by the time
/// of a query.
static bool is_later(const EventState& event) {
  constexpr double kQuerySeconds = 1e-6;
  if (!cost_model() || event.seconds <= host_seconds()) return false;
  advance_host_to(host_seconds() + kQuerySeconds);
  return true;
}

}  // namespace mcpp::cuda_simulator

using namespace mcpp::cuda_simulator;

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  const Lock lock(simulator_mutex());
  *stream = new_stream(priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(simulator_mutex());
  if (!stream) return remember_error(cudaErrorInvalidResourceHandle);
  const auto lost = std::ranges::find_if(stream->queue, [](const Operation& o) { return !o.may_outlive_stream; });
  if (lost != stream->queue.end() && std::uncaught_exceptions() == 0)
    report("cudaStreamDestroy of stream %zu with %zu queued operations, one of them %s", stream->number,
           stream->queue.size(), lost->name.c_str());
  stream->is_destroyed = true;  // the driver completes queued work
  delete_if_finished(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(simulator_mutex());
  if (const cudaError_t error = check_not_capturing(stream); error != cudaSuccess) return error;
  drain_stream(lock, stream, "cudaStreamSynchronize");
  return remember_error(sticky_error());
}
cudaError_t cudaDeviceSynchronize(void) {
  Lock lock(simulator_mutex());
  if (const cudaError_t error = check_not_capturing(); error != cudaSuccess) return error;
  drain_device(lock, current_device(), "cudaDeviceSynchronize");
  return remember_error(sticky_error());
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->state->has_timing = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;  // queued operations share its state
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(simulator_mutex());
  stream = resolve(stream);
  event->state->stream = stream;
  if (capture_event_record(stream, event->state)) return cudaSuccess;
  std::function<bool()> never = nullptr;
  if (should_fail("event")) never = [] { return settings().fault_number == 0; };
  enqueue(stream, {.name = "cudaEventRecord",
                   .run = nullptr,
                   .is_ready = std::move(never),
                   .recorded_event = event->state,
                   .version = ++event->state->recorded});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(simulator_mutex());
  if (cudaError_t result; capture_event_wait(stream, event->state, result)) return result;
  if (event->state->recorded == 0) {
    report("cudaStreamWaitEvent for an event that was never recorded: it waits for nothing");
    return cudaSuccess;
  }
  enqueue(
      stream,
      {.name = "cudaStreamWaitEvent", .run = nullptr, .waited_event = event->state, .version = event->state->recorded});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  constexpr std::uint64_t kMeanQueries = 3;
  const Lock lock(simulator_mutex());
  EventState& state = *event->state;
  if (const cudaError_t error = check_event_not_captured(state); error != cudaSuccess) return error;
  if (state.done < state.recorded && random_bits() % kMeanQueries == 0) {  // queries in a loop must see progress
    if (const cudaStream_t next = choose_stream(state.stream)) run_next(next);
  }
  if (state.done < state.recorded || is_later(state)) return remember_error(cudaErrorNotReady);
  join_host(state.clock);
  return remember_error(sticky_error());
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(simulator_mutex());
  const std::shared_ptr<EventState> state = event->state;
  if (const cudaError_t error = check_event_not_captured(*state); error != cudaSuccess) return error;
  const std::uint64_t version = state->recorded;
  wait_until(
      lock, state->stream, [&] { return state->done >= version; }, "cudaEventSynchronize");
  join_host(state->clock);
  if (cost_model()) advance_host_to(state->seconds);
  return remember_error(sticky_error());
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(simulator_mutex());
  for (const cudaEvent_t event : {start, end}) {
    if (!event->state->has_timing || event->state->recorded == 0) return remember_error(cudaErrorInvalidResourceHandle);
    if (event->state->done < event->state->recorded) return remember_error(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(1e3 * (end->state->seconds - start->state->seconds));
  return cudaSuccess;
}

}  // extern "C"

// Thread pool and an ordered parallel pipeline.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Pool of worker threads that run tasks in order of submission. The destructor drops queued tasks and waits for
/// running ones.
class ThreadPool {
 public:
  explicit ThreadPool(i64 threads) {
    for (i64 i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Queues f(). The future holds its result or exception.
  template <class F>
  auto submit(F f) {
    std::packaged_task<std::invoke_result_t<F>()> task(std::move(f));
    auto future = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      queue_.emplace_back([task = std::move(task)]() mutable { task(); });
    }
    changed_.notify_one();
    return future;
  }

 private:
  void run() {
    while (true) {
      std::packaged_task<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_stopped_ || !queue_.empty(); });
        if (is_stopped_) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> queue_;  // not std::function, which requires copyable callables
  bool is_stopped_ = false;
  std::vector<std::thread> threads_;  // last member: uses all of the above
};

/// Calls consume(transform(item)) for each item of produce(), which returns std::nullopt at the end. `transform` runs
/// on `workers` threads; produce and consume run on the calling thread in order, so the result does not depend on the
/// number of workers. At most 3 items per worker are in memory. Stops at the first error in item order and rethrows it.
template <class Produce, class Transform, class Consume>
void ordered_parallel(i64 workers, Produce produce, Transform transform, Consume consume) {
  using Item = typename std::invoke_result_t<Produce>::value_type;
  using Result = std::invoke_result_t<Transform, Item>;
  std::deque<std::future<Result>> pending;
  ThreadPool pool(workers);  // declared last: destroyed before the objects that its tasks use
  std::exception_ptr produce_error;
  const auto submit_next = [&] {
    try {
      auto item = produce();
      if (!item) return false;
      pending.push_back(pool.submit([&transform, x = std::move(*item)]() mutable { return transform(std::move(x)); }));
      return true;
    } catch (...) {  // the exception is deferred until earlier items are consumed
      produce_error = std::current_exception();
      return false;
    }
  };
  for (bool has_more = true; has_more || !pending.empty();) {
    while (has_more && pending.size() < static_cast<std::size_t>(3 * workers)) has_more = submit_next();
    if (pending.empty()) break;
    Result result = pending.front().get();
    pending.pop_front();
    consume(std::move(result));
  }
  if (produce_error) std::rethrow_exception(produce_error);
}

}  // namespace mcpp

#include "megatron_cpp/prepare/work_sharing.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "checkpoint/folder/exchange.h"

namespace mcpp {
namespace {

constexpr std::chrono::milliseconds kBeat{50};
/// Pieces that a rank has: one that it works on, and the next, so that it need not wait for the ranks to meet.
constexpr i64 kHeld = 2;

/// A thread that does one piece after another.
class Worker {
 public:
  explicit Worker(const PieceOfWork& work) : work_(work), thread_([this](std::stop_token stop) { run(stop); }) {}

  void give(i64 piece) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(piece);
    }
    changed_.notify_all();
  }
  /// Until something happened, or the time is over.
  void wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    happened_.wait_for(lock, time, [&] { return error_ != nullptr; });
  }
  i64 done() const { return done_; }
  double amount() const { return amount_; }
  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  /// Of its failure; nothing without one.
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  void stop() { thread_.request_stop(); }

 private:
  struct Stopped {};

  void run(const std::stop_token& stop) {
    while (true) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !queue_.empty(); }) || stop.stop_requested()) return;
      const i64 piece = queue_.front();
      queue_.pop_front();
      lock.unlock();
      try {
        work_(piece, [&](double amount) {
          amount_ = amount_ + amount;
          if (stop.stop_requested()) throw Stopped();
        });
        ++done_;
      } catch (const Stopped&) {
        return;
      } catch (...) {
        const std::lock_guard error_lock(mutex_);
        error_ = std::current_exception();
        happened_.notify_all();
        return;
      }
    }
  }

  const PieceOfWork& work_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::condition_variable happened_;
  std::deque<i64> queue_;
  std::exception_ptr error_;
  std::atomic<i64> done_ = 0;
  std::atomic<double> amount_ = 0;
  std::jthread thread_;  // last: it uses all of the above
};

/// What a rank tells the others.
struct Standing {
  double wants = 0, done = 0, amount = 0, has_failed = 0;
};

std::vector<Standing> gather(const Standing& mine, Communicator& ranks) {
  CpuDevice host;
  constexpr i64 kNumbers = sizeof(Standing) / sizeof(double);
  Tensor own = Tensor::empty({kNumbers}, DType::F64, host, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumbers * ranks.size()}, DType::F64, host, MemoryClass::Other);
  std::memcpy(own.raw(), &mine, sizeof(mine));
  ranks.all_gather(own, all).wait();
  std::vector<Standing> standings(static_cast<std::size_t>(ranks.size()));
  std::memcpy(standings.data(), all.raw(), standings.size() * sizeof(Standing));
  return standings;
}

}  // namespace

void share_work(Communicator& ranks, i64 pieces, const PieceOfWork& work,
                const std::function<void(const WorkDone&)>& progress) {
  Worker worker(work);
  i64 next = 0, held = 0;
  for (WorkDone all; all.pieces < pieces;) {
    worker.wait(kBeat);
    const i64 done = worker.done();
    const std::vector<Standing> standings =
        gather({.wants = static_cast<double>(std::max<i64>(0, kHeld - (held - done))),
                .done = static_cast<double>(done),
                .amount = worker.amount(),
                .has_failed = worker.has_failed() ? 1.0 : 0.0},
               ranks);
    all = {};
    bool any_failed = false;
    for (const Standing& standing : standings) {
      all.pieces += static_cast<i64>(standing.done);
      all.amount += standing.amount;
      any_failed = any_failed || standing.has_failed != 0;
    }
    // Each rank deals them out for all, alike: to each that wants one, then to each that wants another.
    for (i64 wanted = 1; wanted <= kHeld; ++wanted) {
      for (int rank = 0; rank < ranks.size() && next < pieces; ++rank) {
        if (standings[static_cast<std::size_t>(rank)].wants < static_cast<double>(wanted)) continue;
        if (rank == ranks.rank()) worker.give(next), ++held;
        ++next;
      }
    }
    if (any_failed) {
      worker.stop();
      run_together(ranks, [&] {
        worker.rethrow();
        return std::string();
      });
    }
    progress(all);
  }
}

}  // namespace mcpp

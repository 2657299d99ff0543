#include "megatron_cpp/prepare/work_distribution.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

/// Interval between exchanges while all ranks have work, and while one has none.
constexpr std::chrono::milliseconds kExchangeInterval{50}, kShortExchangeInterval{5};
/// Pieces held by a rank: the current one and the next, so that it need not wait for an exchange.
constexpr i64 kMaxHeldPieces = 2;

/// Updates that a rank has not sent yet.
struct PendingUpdates {
  std::vector<WorkUpdate> news;
  std::vector<i64> ended;
};

/// Runs pieces one after another on a thread, and their ends on a second one.
class Worker {
 public:
  explicit Worker(const PieceFn& work)
      : work_(work),
        worker_([this](const std::stop_token& stop) { run_until_failure([&] { run_pieces(stop); }); }),
        finalizer_([this](const std::stop_token& stop) { run_until_failure([&] { run_finalizers(stop); }); }) {}

  void assign(i64 piece) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(piece);
      ++assigned_;
    }
    changed_.notify_all();
  }
  /// Waits for `time` or until an error occurs.
  void wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return error_ != nullptr; });
  }
  /// Returns the number of pieces that were assigned and whose work (except for the end) is not done.
  i64 num_held() {
    const std::lock_guard lock(mutex_);
    return assigned_ - processed_;
  }
  double amount() const { return amount_; }
  /// Returns the updates since the last call.
  PendingUpdates take_updates() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }
  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  /// Rethrows the worker's error, if any.
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  void stop() {
    worker_.request_stop();
    finalizer_.request_stop();
  }

 private:
  struct Stopped {};

  void run_pieces(const std::stop_token& stop) {
    while (const std::optional<i64> piece = take(pieces_, stop)) {
      ProcessedPiece worked = work_(*piece, [&](double amount) {
        amount_ = amount_ + amount;
        if (stop.stop_requested()) throw Stopped();
      });
      const std::lock_guard lock(mutex_);
      ++processed_;
      pending_.news.push_back({.piece = *piece, .rank = 0, .text = std::move(worked.text)});
      ends_.push_back({*piece, std::move(worked.end)});
      changed_.notify_all();
    }
  }
  void run_finalizers(const std::stop_token& stop) {
    while (const auto piece = take(ends_, stop)) {
      piece->second(stop);
      const std::lock_guard lock(mutex_);
      pending_.ended.push_back(piece->first);
    }
  }
  /// Removes the next element of a queue; returns std::nullopt if the thread should stop.
  template <class T>
  std::optional<T> take(std::deque<T>& queue, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop, [&] { return error_ || !queue.empty(); });
    if (stop.stop_requested() || error_) return std::nullopt;
    T next = std::move(queue.front());
    queue.pop_front();
    return next;
  }
  void run_until_failure(const std::function<void()>& f) {
    try {
      f();
    } catch (const Stopped&) {
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  const PieceFn& work_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<i64> pieces_;
  std::deque<std::pair<i64, FinalizeFn>> ends_;
  PendingUpdates pending_;
  std::exception_ptr error_;
  i64 assigned_ = 0, processed_ = 0;
  std::atomic<double> amount_ = 0;
  std::jthread worker_, finalizer_;  // last members: use all of the above
};

/// Fixed-size state that each rank gathers from the others.
struct RankState {
  double num_held = 0, pending = 0, amount = 0, has_failed = 0;
};

std::vector<RankState> gather(const RankState& local, Communicator& ranks) {
  CpuDevice host;
  constexpr i64 kNumbers = sizeof(RankState) / sizeof(double);
  Tensor encoded = Tensor::empty({kNumbers}, DType::F64, host, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumbers * ranks.size()}, DType::F64, host, MemoryClass::Other);
  std::memcpy(encoded.raw(), &local, sizeof(local));
  ranks.all_gather(encoded, all).wait();
  std::vector<RankState> states(static_cast<std::size_t>(ranks.size()));
  std::memcpy(states.data(), all.raw(), states.size() * sizeof(RankState));
  return states;
}

/// Gathers the updates of all ranks on all ranks.
PendingUpdates exchange(const PendingUpdates& local, Communicator& ranks) {
  Json encoded{{"news", Json::array()}, {"ended", local.ended}};
  for (const WorkUpdate& news : local.news) encoded["news"].push_back({news.piece, news.text});
  const std::vector<std::string> texts =
      all_gather_strings(encoded.dump(-1, ' ', false, Json::error_handler_t::replace), ranks);
  PendingUpdates all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json pending = Json::parse(texts[rank]);
    for (const Json& news : pending["news"])
      all.news.push_back({.piece = news[0], .rank = static_cast<int>(rank), .text = news[1]});
    for (const Json& piece : pending["ended"]) all.ended.push_back(piece);
  }
  return all;
}

/// Assigns pieces to ranks. All ranks compute identical assignments.
class PieceScheduler {
 public:
  PieceScheduler(i64 pieces, int ranks) : pieces_(pieces), ranks_(ranks) {}

  /// Assigns one piece to each idle rank, then a second one to each. The last pieces are held back for whichever rank
  /// finishes first.
  std::vector<i64> assign_pieces(const std::vector<RankState>& states, int rank) {
    std::vector<i64> local;
    for (i64 have = 0; have < kMaxHeldPieces; ++have) {
      for (int to = 0; to < ranks_ && next_ < pieces_; ++to) {
        if (have > 0 && pieces_ - next_ < ranks_) return local;
        if (states[static_cast<std::size_t>(to)].num_held > static_cast<double>(have)) continue;
        if (to == rank) local.push_back(next_);
        ++next_;
      }
    }
    return local;
  }

 private:
  i64 pieces_, next_ = 0;
  int ranks_;
};

/// Stops all ranks; the others learn of a failure at the next exchange.
void throw_on_all(Worker& worker, Communicator& ranks) {
  worker.stop();
  run_on_all_ranks(ranks, [&] {
    worker.rethrow();
    return std::string();
  });
}

}  // namespace

void distribute_work(Communicator& ranks, i64 pieces, const PieceFn& work,
                     const std::function<void(const WorkProgress&)>& progress) {
  Worker worker(work);
  PieceScheduler scheduler(pieces, ranks.size());
  WorkProgress all;
  for (std::chrono::milliseconds interval{0}; all.pieces < pieces;) {
    worker.wait(interval);
    const PendingUpdates local = worker.take_updates();
    const std::vector<RankState> states =
        gather({.num_held = static_cast<double>(worker.num_held()),
                .pending = static_cast<double>(local.news.size() + local.ended.size()),
                .amount = worker.amount(),
                .has_failed = worker.has_failed() ? 1.0 : 0.0},
               ranks);
    const auto any = [&](double RankState::*what) {
      return std::ranges::any_of(states, [&](const RankState& state) { return state.*what != 0; });
    };
    if (any(&RankState::has_failed)) throw_on_all(worker, ranks);
    for (const i64 piece : scheduler.assign_pieces(states, ranks.rank())) worker.assign(piece);
    const bool all_work = std::ranges::all_of(states, [](const RankState& state) { return state.num_held > 0; });
    interval = all_work ? kExchangeInterval : kShortExchangeInterval;
    PendingUpdates pending = any(&RankState::pending) ? exchange(local, ranks) : PendingUpdates();
    all.news = std::move(pending.news);
    all.ended = std::move(pending.ended);
    all.pieces += std::ssize(all.ended);
    all.amount = 0;
    for (const RankState& state : states) all.amount += state.amount;
    progress(all);
  }
}

}  // namespace mcpp

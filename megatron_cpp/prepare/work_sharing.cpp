#include "megatron_cpp/prepare/work_sharing.h"

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
#include "checkpoint/folder/exchange.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

/// Interval between exchanges while all ranks have work, and while one has none.
constexpr std::chrono::milliseconds kBeat{50}, kShortBeat{5};
/// Pieces held by a rank: the current one and the next, so that it need not wait for an exchange.
constexpr i64 kHeld = 2;

/// Updates that a rank has not sent yet.
struct Told {
  std::vector<PieceNews> news;
  std::vector<i64> ended;
};

/// Runs pieces one after another on a thread, and their ends on a second one.
class Worker {
 public:
  explicit Worker(const PieceOfWork& work)
      : work_(work),
        worker_([this](const std::stop_token& stop) { until_failure([&] { do_pieces(stop); }); }),
        ender_([this](const std::stop_token& stop) { until_failure([&] { do_ends(stop); }); }) {}

  void give(i64 piece) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(piece);
      ++given_;
    }
    changed_.notify_all();
  }
  /// Waits for `time` or until an error occurs.
  void wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return error_ != nullptr; });
  }
  /// Returns the number of pieces that were assigned and whose work (except for the end) is not done.
  i64 held() {
    const std::lock_guard lock(mutex_);
    return given_ - worked_;
  }
  double amount() const { return amount_; }
  /// Returns the updates since the last call.
  Told take_told() {
    const std::lock_guard lock(mutex_);
    return std::exchange(told_, {});
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
    ender_.request_stop();
  }

 private:
  struct Stopped {};

  void do_pieces(const std::stop_token& stop) {
    while (const std::optional<i64> piece = take(pieces_, stop)) {
      WorkedPiece worked = work_(*piece, [&](double amount) {
        amount_ = amount_ + amount;
        if (stop.stop_requested()) throw Stopped();
      });
      const std::lock_guard lock(mutex_);
      ++worked_;
      told_.news.push_back({.piece = *piece, .rank = 0, .text = std::move(worked.text)});
      ends_.push_back({*piece, std::move(worked.end)});
      changed_.notify_all();
    }
  }
  void do_ends(const std::stop_token& stop) {
    while (const auto piece = take(ends_, stop)) {
      piece->second(stop);
      const std::lock_guard lock(mutex_);
      told_.ended.push_back(piece->first);
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
  void until_failure(const std::function<void()>& f) {
    try {
      f();
    } catch (const Stopped&) {
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  const PieceOfWork& work_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<i64> pieces_;
  std::deque<std::pair<i64, EndOfPiece>> ends_;
  Told told_;
  std::exception_ptr error_;
  i64 given_ = 0, worked_ = 0;
  std::atomic<double> amount_ = 0;
  std::jthread worker_, ender_;  // last members: use all of the above
};

/// Fixed-size state that each rank gathers from the others.
struct Standing {
  double held = 0, told = 0, amount = 0, has_failed = 0;
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

/// Gathers the updates of all ranks on all ranks.
Told exchange(const Told& mine, Communicator& ranks) {
  Json own{{"news", Json::array()}, {"ended", mine.ended}};
  for (const PieceNews& news : mine.news) own["news"].push_back({news.piece, news.text});
  const std::vector<std::string> texts =
      all_gather_text(own.dump(-1, ' ', false, Json::error_handler_t::replace), ranks);
  Told all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json told = Json::parse(texts[rank]);
    for (const Json& news : told["news"])
      all.news.push_back({.piece = news[0], .rank = static_cast<int>(rank), .text = news[1]});
    for (const Json& piece : told["ended"]) all.ended.push_back(piece);
  }
  return all;
}

/// Assigns pieces to ranks. All ranks compute identical assignments.
class Dealer {
 public:
  Dealer(i64 pieces, int ranks) : pieces_(pieces), ranks_(ranks) {}

  /// Assigns one piece to each idle rank, then a second one to each. The last pieces are held back for whichever rank
  /// finishes first.
  std::vector<i64> deal(const std::vector<Standing>& standings, int rank) {
    std::vector<i64> mine;
    for (i64 have = 0; have < kHeld; ++have) {
      for (int to = 0; to < ranks_ && next_ < pieces_; ++to) {
        if (have > 0 && pieces_ - next_ < ranks_) return mine;
        if (standings[static_cast<std::size_t>(to)].held > static_cast<double>(have)) continue;
        if (to == rank) mine.push_back(next_);
        ++next_;
      }
    }
    return mine;
  }

 private:
  i64 pieces_, next_ = 0;
  int ranks_;
};

/// Stops all ranks; the others learn of a failure at the next exchange.
void throw_on_all(Worker& worker, Communicator& ranks) {
  worker.stop();
  run_together(ranks, [&] {
    worker.rethrow();
    return std::string();
  });
}

}  // namespace

void share_work(Communicator& ranks, i64 pieces, const PieceOfWork& work,
                const std::function<void(const WorkDone&)>& progress) {
  Worker worker(work);
  Dealer dealer(pieces, ranks.size());
  WorkDone all;
  for (std::chrono::milliseconds beat{0}; all.pieces < pieces;) {
    worker.wait(beat);
    const Told mine = worker.take_told();
    const std::vector<Standing> standings = gather({.held = static_cast<double>(worker.held()),
                                                    .told = static_cast<double>(mine.news.size() + mine.ended.size()),
                                                    .amount = worker.amount(),
                                                    .has_failed = worker.has_failed() ? 1.0 : 0.0},
                                                   ranks);
    const auto any = [&](double Standing::*what) {
      return std::ranges::any_of(standings, [&](const Standing& standing) { return standing.*what != 0; });
    };
    if (any(&Standing::has_failed)) throw_on_all(worker, ranks);
    for (const i64 piece : dealer.deal(standings, ranks.rank())) worker.give(piece);
    const bool all_work = std::ranges::all_of(standings, [](const Standing& standing) { return standing.held > 0; });
    beat = all_work ? kBeat : kShortBeat;
    Told told = any(&Standing::told) ? exchange(mine, ranks) : Told();
    all.news = std::move(told.news);
    all.ended = std::move(told.ended);
    all.pieces += std::ssize(all.ended);
    all.amount = 0;
    for (const Standing& standing : standings) all.amount += standing.amount;
    progress(all);
  }
}

}  // namespace mcpp

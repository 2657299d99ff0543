#include "megatron_cpp/prepare/work_sharing.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
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

constexpr std::chrono::milliseconds kBeat{50};
/// Pieces that a rank has: one that it works on, and the next, so that it need not wait for the ranks to meet.
constexpr i64 kHeld = 2;

/// Does one piece after another in a thread, and their ends in another, one after another, too.
class Worker {
 public:
  explicit Worker(const PieceOfWork& work) : work_(work), thread_([this](std::stop_token stop) { run(stop); }) {}

  void give(i64 piece) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(piece);
      ++given_;
    }
    changed_.notify_all();
  }
  /// Until it failed, or the time is over.
  void wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    failed_.wait_for(lock, time, [&] { return error_ != nullptr; });
  }
  /// Pieces that it was given and has not worked through but for their end.
  i64 held() {
    const std::lock_guard lock(mutex_);
    return given_ - worked_;
  }
  double amount() const { return amount_; }
  /// The pieces that were done since it was asked last.
  std::vector<DonePiece> take_done() {
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }
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
    std::future<void> ending;  // waited for when it is replaced, or the thread ends
    while (const std::optional<i64> piece = take(stop)) {
      try {
        EndOfPiece end = work_(*piece, [&](double amount) {
          amount_ = amount_ + amount;
          if (stop.stop_requested()) throw Stopped();
        });
        if (ending.valid()) ending.get();
        {
          const std::lock_guard lock(mutex_);
          ++worked_;
        }
        ending = std::async(std::launch::async, [this, piece = *piece, end = std::move(end)] { finish(piece, end); });
      } catch (const Stopped&) {
        return;
      } catch (...) {
        return fail_with(std::current_exception());
      }
    }
  }
  /// The next piece; none when it is to end.
  std::optional<i64> take(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop, [&] { return !queue_.empty(); });
    if (stop.stop_requested() || error_) return std::nullopt;
    const i64 piece = queue_.front();
    queue_.pop_front();
    return piece;
  }
  void finish(i64 piece, const EndOfPiece& end) {
    try {
      std::string text = end();
      const std::lock_guard lock(mutex_);
      done_.push_back({.piece = piece, .rank = 0, .text = std::move(text)});
    } catch (...) {
      fail_with(std::current_exception());
    }
  }
  void fail_with(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.notify_all();
  }

  const PieceOfWork& work_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::condition_variable failed_;
  std::deque<i64> queue_;
  std::vector<DonePiece> done_;
  std::exception_ptr error_;
  i64 given_ = 0, worked_ = 0;
  std::atomic<double> amount_ = 0;
  std::jthread thread_;  // last: it uses all of the above
};

/// What a rank tells the others.
struct Standing {
  double held = 0, done = 0, amount = 0, has_failed = 0;
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

/// What each rank has done, told to all.
std::vector<DonePiece> exchange_news(const std::vector<DonePiece>& mine, Communicator& ranks) {
  Json own = Json::array();
  for (const DonePiece& done : mine) own.push_back({done.piece, done.text});
  const std::vector<std::string> all = all_gather_text(own.dump(-1, ' ', false, Json::error_handler_t::replace), ranks);
  std::vector<DonePiece> news;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (const Json& done : Json::parse(all[rank]))
      news.push_back({.piece = done[0], .rank = static_cast<int>(rank), .text = done[1]});
  return news;
}

/// Deals pieces out, on each rank for all of them alike.
class Dealer {
 public:
  Dealer(i64 pieces, int ranks) : pieces_(pieces), ranks_(ranks) {}

  /// One for each rank that has none, then another one for each; the last ones wait for who is done first.
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

/// The others learn of a failure at the next meeting.
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
  for (bool is_first = true; all.pieces < pieces; is_first = false) {
    if (!is_first) worker.wait(kBeat);
    const std::vector<DonePiece> done = worker.take_done();
    const std::vector<Standing> standings = gather({.held = static_cast<double>(worker.held()),
                                                    .done = static_cast<double>(done.size()),
                                                    .amount = worker.amount(),
                                                    .has_failed = worker.has_failed() ? 1.0 : 0.0},
                                                   ranks);
    const auto any = [&](double Standing::*what) {
      return std::ranges::any_of(standings, [&](const Standing& standing) { return standing.*what != 0; });
    };
    if (any(&Standing::has_failed)) throw_on_all(worker, ranks);
    for (const i64 piece : dealer.deal(standings, ranks.rank())) worker.give(piece);
    all.news = any(&Standing::done) ? exchange_news(done, ranks) : std::vector<DonePiece>();
    all.pieces += std::ssize(all.news);
    all.amount = 0;
    for (const Standing& standing : standings) all.amount += standing.amount;
    progress(all);
  }
}

}  // namespace mcpp

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/io/transfer_queue.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

constexpr int kThreads = 4;  // pieces the disk works on concurrently

/// Transfers all of `rest`. Returns 0 or an errno.
int transfer_all(FileTransfer rest) {
  while (rest.bytes > 0) {
    const auto bytes = static_cast<std::size_t>(rest.bytes);
    const bool writes = rest.kind == FileTransfer::Kind::Write;
    const ssize_t done =
        writes ? ::pwrite(rest.file, rest.data, bytes, rest.offset) : ::pread(rest.file, rest.data, bytes, rest.offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return last_system_error();
    if (done == 0) return writes ? ENOSPC : EIO;
    rest.offset += done, rest.data += done, rest.bytes -= done;
  }
  return 0;
}

class ThreadQueue final : public TransferQueue {
 public:
  ThreadQueue() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  Ticket start(const FileTransfer& transfer) override {
    const std::lock_guard lock(mutex_);
    const Ticket ticket = next_++;
    Progress& progress = progress_[ticket];
    for (i64 at = 0; at < transfer.bytes; at += kPiece) {
      FileTransfer piece = transfer;
      piece.offset += at, piece.data += at, piece.bytes = std::min(kPiece, transfer.bytes - at);
      pieces_.push_back({piece, ticket});
      ++progress.pending;
    }
    changed_.notify_all();
    return ticket;
  }

  int wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    const auto found = progress_.find(ticket);
    MCPP_CHECK(found != progress_.end(), "no transfer has ticket ", ticket);
    changed_.wait(lock, [&] { return found->second.pending == 0; });
    const int error = found->second.error;
    progress_.erase(found);
    return error;
  }

  std::string_view name() const override { return "threads"; }

 private:
  struct Piece {
    FileTransfer transfer;
    Ticket ticket;
  };
  struct Progress {
    int pending = 0, error = 0;
  };

  /// Runs one thread until the queue is closed and drained.
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !pieces_.empty(); });
      if (pieces_.empty()) return;
      const Piece piece = pieces_.front();
      pieces_.pop_front();
      lock.unlock();
      const int error = transfer_all(piece.transfer);
      lock.lock();
      Progress& progress = progress_.at(piece.ticket);
      if (error != 0) progress.error = error;
      if (--progress.pending == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  std::map<Ticket, Progress> progress_;
  Ticket next_ = 1;
  bool ends_ = false;
  std::vector<std::jthread> threads_;  // last member: the threads use all members above, and its destructor joins them
};

}  // namespace

std::unique_ptr<TransferQueue> make_thread_queue() {
  return std::make_unique<ThreadQueue>();
}

}  // namespace mcpp

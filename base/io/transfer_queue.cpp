#include "base/io/transfer_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/system_error.h"
#include "base/thread_pool.h"

namespace mcpp {
namespace {

template <class F>
void for_each_piece(const FileTransfer& transfer, const F& f) {
  for (i64 at = 0; at < transfer.bytes; at += TransferQueue::kPiece) {
    FileTransfer piece = transfer;
    piece.offset += at, piece.data += at, piece.bytes = std::min(TransferQueue::kPiece, transfer.bytes - at);
    f(piece);
  }
}

constexpr unsigned kDepth = 256;  // maximum number of pieces in flight

class RingQueue final : public TransferQueue {
 public:
  explicit RingQueue(const io_uring& ring) : ring_(ring), pieces_(kDepth) {
    for (unsigned i = 0; i < kDepth; ++i) free_.push_back(i);
  }
  ~RingQueue() override {
    while (free_.size() < kDepth) finish_one();
    ::io_uring_queue_exit(&ring_);
  }
  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;

  Ticket start(const FileTransfer& transfer) override {
    const Ticket ticket = next_++;
    Progress& progress = progress_[ticket];
    for_each_piece(transfer, [&](const FileTransfer& piece) {
      if (free_.empty()) finish_one();
      const unsigned slot = free_.back();
      free_.pop_back();
      pieces_[slot] = {piece, ticket};
      ++progress.pending;
      queue(slot);
    });
    submit();
    return ticket;
  }

  int wait(Ticket ticket) override {
    const auto found = progress_.find(ticket);
    MCPP_CHECK(found != progress_.end(), "no transfer has ticket ", ticket);
    while (found->second.pending > 0) finish_one();
    const int error = found->second.error;
    progress_.erase(found);
    return error;
  }

  std::string_view name() const override { return "io_uring"; }

 private:
  struct Piece {
    FileTransfer rest;  // the part not yet transferred
    Ticket ticket = 0;
  };
  struct Progress {
    int pending = 0, error = 0;
  };

  void queue(unsigned slot) {
    const FileTransfer& t = pieces_[slot].rest;
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    if (!entry) {
      submit();
      entry = ::io_uring_get_sqe(&ring_);
    }
    MCPP_CHECK(entry, "the ring is full");
    const auto bytes = static_cast<unsigned>(t.bytes);
    const auto offset = static_cast<u64>(t.offset);
    if (t.kind == FileTransfer::Kind::Read)
      ::io_uring_prep_read(entry, t.file, t.data, bytes, offset);
    else
      ::io_uring_prep_write(entry, t.file, t.data, bytes, offset);
    ::io_uring_sqe_set_data64(entry, slot);
  }

  /// Submits everything queued. The kernel may accept fewer entries per call, and the remainder would never complete.
  void submit() {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int result = ::io_uring_submit(&ring_);
      if (result == -EINTR || result == -EAGAIN) continue;
      MCPP_CHECK_ERROR(result < 0 ? -result : 0, "cannot submit to io_uring");
    }
  }

  void finish_one() {
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do result = ::io_uring_wait_cqe(&ring_, &entry);
    while (result == -EINTR);
    MCPP_CHECK_ERROR(result < 0 ? -result : 0, "cannot wait for io_uring");
    const auto slot = static_cast<unsigned>(::io_uring_cqe_get_data64(entry));
    const int done = entry->res;
    ::io_uring_cqe_seen(&ring_, entry);
    finish(slot, done);
  }

  /// Handles a completion. `done` is the number of bytes, or a negative errno.
  void finish(unsigned slot, int done) {
    FileTransfer& rest = pieces_[slot].rest;
    const bool should_retry = done == -EINTR || done == -EAGAIN;
    if (done > 0) rest.offset += done, rest.data += done, rest.bytes -= done;
    if (should_retry || (done > 0 && rest.bytes > 0)) {
      queue(slot);
      submit();
      return;
    }
    Progress& progress = progress_.at(pieces_[slot].ticket);
    if (done < 0) progress.error = -done;
    if (done == 0) progress.error = rest.kind == FileTransfer::Kind::Write ? ENOSPC : EIO;  // disk full, or end of file
    --progress.pending;
    free_.push_back(slot);
  }

  io_uring ring_;
  std::vector<Piece> pieces_;
  std::vector<unsigned> free_;
  std::map<Ticket, Progress> progress_;
  Ticket next_ = 1;
};

}  // namespace

std::unique_ptr<TransferQueue> make_ring_queue() {
  io_uring ring{};
  if (::io_uring_queue_init(kDepth, &ring, 0) != 0) return nullptr;
  return std::make_unique<RingQueue>(ring);
}

std::unique_ptr<TransferQueue> make_transfer_queue() {
  std::unique_ptr<TransferQueue> queue = make_ring_queue();
  return queue ? std::move(queue) : make_thread_queue();
}

int transfer_now(FileTransfer transfer) {
  const bool is_write = transfer.kind == FileTransfer::Kind::Write;
  while (transfer.bytes > 0) {
    const auto bytes = static_cast<std::size_t>(transfer.bytes);
    const ssize_t done = is_write ? ::pwrite(transfer.file, transfer.data, bytes, transfer.offset)
                                  : ::pread(transfer.file, transfer.data, bytes, transfer.offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return last_system_error();
    if (done == 0) return is_write ? ENOSPC : EIO;
    transfer.offset += done, transfer.data += done, transfer.bytes -= done;
  }
  return 0;
}

int TransferQueue::wait_all(const std::vector<Ticket>& tickets) {
  int error = 0;
  for (const Ticket ticket : tickets) {
    const int result = wait(ticket);
    if (error == 0) error = result;
  }
  return error;
}

namespace {

class ThreadQueue final : public TransferQueue {
 public:
  ThreadQueue() = default;
  ~ThreadQueue() override {
    for (const auto& [ticket, pieces] : pieces_) {
      for (const std::future<int>& piece : pieces) piece.wait();
    }
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  Ticket start(const FileTransfer& transfer) override {
    std::vector<std::future<int>>& pieces = pieces_[next_];
    for_each_piece(transfer, [&](const FileTransfer& piece) {
      pieces.push_back(threads_.submit([piece] { return transfer_now(piece); }));
    });
    return next_++;
  }

  int wait(Ticket ticket) override {
    auto found = pieces_.extract(ticket);
    MCPP_CHECK(found, "no transfer has ticket ", ticket);
    int error = 0;
    for (std::future<int>& piece : found.mapped()) {
      if (const int result = piece.get(); result != 0) error = result;
    }
    return error;
  }

  std::string_view name() const override { return "threads"; }

 private:
  static constexpr i64 kThreads = 4;  // pieces the disk works on concurrently

  std::map<Ticket, std::vector<std::future<int>>> pieces_;
  Ticket next_ = 1;
  ThreadPool threads_{kThreads};
};

}  // namespace

std::unique_ptr<TransferQueue> make_thread_queue() {
  return std::make_unique<ThreadQueue>();
}

}  // namespace mcpp

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
void for_each_chunk(const FileTransfer& transfer, const F& f) {
  for (i64 at = 0; at < transfer.bytes; at += TransferQueue::kChunk) {
    FileTransfer chunk = transfer;
    chunk.offset += at, chunk.data += at, chunk.bytes = std::min(TransferQueue::kChunk, transfer.bytes - at);
    f(chunk);
  }
}

constexpr unsigned kDepth = 256;  // maximum number of chunks in flight

class RingQueue final : public TransferQueue {
 public:
  explicit RingQueue(const io_uring& ring) : ring_(ring), chunks_(kDepth) {
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
    for_each_chunk(transfer, [&](const FileTransfer& chunk) {
      if (free_.empty()) finish_one();
      const unsigned slot = free_.back();
      free_.pop_back();
      chunks_[slot] = {chunk, ticket};
      ++progress.pending;
      queue(slot);
    });
    submit();
    return ticket;
  }

  int wait(Ticket ticket) override {
    const auto it = progress_.find(ticket);
    MCPP_CHECK(it != progress_.end(), "no transfer has ticket ", ticket);
    while (it->second.pending > 0) finish_one();
    const int error = it->second.error;
    progress_.erase(it);
    return error;
  }

  std::string_view name() const override { return "io_uring"; }

 private:
  struct Chunk {
    FileTransfer rest;  // the part not yet transferred
    Ticket ticket = 0;
  };
  struct Progress {
    int pending = 0, error = 0;
  };

  void queue(unsigned slot) {
    const FileTransfer& t = chunks_[slot].rest;
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
    FileTransfer& rest = chunks_[slot].rest;
    const bool should_retry = done == -EINTR || done == -EAGAIN;
    if (done > 0) rest.offset += done, rest.data += done, rest.bytes -= done;
    if (should_retry || (done > 0 && rest.bytes > 0)) {
      queue(slot);
      submit();
      return;
    }
    Progress& progress = progress_.at(chunks_[slot].ticket);
    if (done < 0) progress.error = -done;
    if (done == 0) progress.error = rest.kind == FileTransfer::Kind::Write ? ENOSPC : EIO;  // disk full, or end of file
    --progress.pending;
    free_.push_back(slot);
  }

  io_uring ring_;
  std::vector<Chunk> chunks_;
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
    for (const auto& [ticket, chunks] : chunks_) {
      for (const std::future<int>& chunk : chunks) chunk.wait();
    }
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  Ticket start(const FileTransfer& transfer) override {
    std::vector<std::future<int>>& chunks = chunks_[next_];
    for_each_chunk(transfer, [&](const FileTransfer& chunk) {
      chunks.push_back(threads_.submit([chunk] { return transfer_now(chunk); }));
    });
    return next_++;
  }

  int wait(Ticket ticket) override {
    auto it = chunks_.extract(ticket);
    MCPP_CHECK(it, "no transfer has ticket ", ticket);
    int error = 0;
    for (std::future<int>& chunk : it.mapped()) {
      if (const int result = chunk.get(); result != 0) error = result;
    }
    return error;
  }

  std::string_view name() const override { return "threads"; }

 private:
  static constexpr i64 kThreads = 4;  // chunks the disk works on concurrently

  std::map<Ticket, std::vector<std::future<int>>> chunks_;
  Ticket next_ = 1;
  ThreadPool threads_{kThreads};
};

}  // namespace

std::unique_ptr<TransferQueue> make_thread_queue() {
  return std::make_unique<ThreadQueue>();
}

}  // namespace mcpp

#include "base/object_store/s3_transfer.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/integer_math.h"

namespace mcpp {
namespace {

constexpr i64 kMinPartBytes = i64{5} << 20, kMaxParts = 10'000;  // limits of S3

/// Queue of the parts of a transfer, which several threads process. Thread-safe.
class PartQueue {
 public:
  explicit PartQueue(i64 count) : count_(count) {}

  /// Returns the next part; std::nullopt if none is left or one has failed.
  std::optional<i64> take() {
    const std::lock_guard lock(mutex_);
    if (next_ == count_) return std::nullopt;
    ++running_;
    return next_++;
  }
  /// Completes a part that take() returned. After an error, take() returns no more parts.
  void finish(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    if (error) next_ = count_;
    if (!error_) error_ = error;
    if (--running_ == 0) finished_.notify_all();
  }
  /// Waits for the parts that were taken, after take() has returned std::nullopt, and rethrows the first error.
  void wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return running_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  i64 count_, next_ = 0, running_ = 0;
  std::exception_ptr error_;
};

}  // namespace

/// Exclusive use of a connection. The constructor waits until one is free.
class S3Transfer::Lease {
 public:
  explicit Lease(S3Transfer& transfer) : transfer_(transfer) {
    std::unique_lock lock(transfer.mutex_);
    transfer.returned_.wait(lock, [&] { return !transfer.free_.empty(); });
    connection_ = transfer.free_.back();
    transfer.free_.pop_back();
  }
  ~Lease() {
    {
      const std::lock_guard lock(transfer_.mutex_);
      transfer_.free_.push_back(connection_);
    }
    transfer_.returned_.notify_one();
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Connection& operator*() const { return *connection_; }

 private:
  S3Transfer& transfer_;
  Connection* connection_;
};

S3Transfer::S3Transfer(const S3Settings& settings, i64 part_bytes, int connections)
    : part_bytes_(part_bytes), threads_(connections - 1) {
  for (int i = 0; i < connections; ++i) connections_.push_back({S3Client(settings), AlignedBytes(part_bytes)});
  for (Connection& connection : connections_) free_.push_back(&connection);
}

/// Calls f for each part, on the calling thread and on free threads; rethrows the first error after all calls have
/// ended.
void S3Transfer::run_parts(i64 count, const std::function<void(Connection&, i64 part)>& f) {
  const auto parts = std::make_shared<PartQueue>(count);
  const auto run = [this, parts, &f] {  // a thread that finds no part left does not use f, which may be gone
    const Lease connection(*this);
    while (const std::optional<i64> part = parts->take()) {
      std::exception_ptr error;
      try {
        f(*connection, *part);
      } catch (...) {
        error = std::current_exception();
      }
      parts->finish(error);
    }
  };
  for (i64 i = 1; i < std::min(count, std::ssize(connections_)); ++i) threads_.submit(run);
  run();
  parts->wait();
}

S3Object S3Transfer::head(const S3Path& path) {
  return (*Lease(*this)).client.head(path);
}

void S3Transfer::upload(const Path& file, const S3Path& to) {
  const MappedFile content(file);
  if (std::ssize(content.bytes()) <= part_bytes_)
    (*Lease(*this)).client.put(to, content.bytes());
  else
    upload_parts(content.bytes(), to);
}

void S3Transfer::upload_parts(std::span<const std::byte> content, const S3Path& to) {
  const i64 size = std::ssize(content);
  const i64 part_bytes = std::max({part_bytes_, kMinPartBytes, ceil_div(size, kMaxParts)});
  std::vector<std::string> etags(static_cast<std::size_t>(ceil_div(size, part_bytes)));
  const std::string upload = (*Lease(*this)).client.begin_upload(to);
  try {
    run_parts(std::ssize(etags), [&](Connection& connection, i64 part) {
      const i64 begin = part * part_bytes, count = std::min(part_bytes, size - begin);
      const auto bytes = content.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      etags[static_cast<std::size_t>(part)] = connection.client.put_part(to, upload, static_cast<int>(part) + 1, bytes);
    });
    (*Lease(*this)).client.complete_upload(to, upload, etags, size);
  } catch (...) {
    (*Lease(*this)).client.abort_upload(to, upload);
    throw;
  }
}

void S3Transfer::download(const S3Path& path, const S3Object& object, i64 begin, i64 end, const PartWriter& write) {
  run_parts(ceil_div(end - begin, part_bytes_), [&](Connection& connection, i64 part) {
    const i64 first = begin + part * part_bytes_, count = std::min(part_bytes_, end - first);
    const std::span<std::byte> bytes = connection.buffer.bytes().first(static_cast<std::size_t>(count));
    connection.client.read(path, object, first, bytes);
    write(first, bytes);
  });
}

std::vector<std::byte> S3Transfer::read_ranges(const S3Path& path, const S3Object& object, std::span<const i64> offsets,
                                               i64 bytes) {
  std::vector<std::byte> result(offsets.size() * static_cast<std::size_t>(bytes));
  run_parts(std::ssize(offsets), [&](Connection& connection, i64 part) {
    const auto to = std::span(result).subspan(static_cast<std::size_t>(part * bytes), static_cast<std::size_t>(bytes));
    connection.client.read(path, object, offsets[static_cast<std::size_t>(part)], to);
  });
  return result;
}

}  // namespace mcpp

#include "base/object_store/s3_transfer.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/integer_math.h"

namespace mcpp {
namespace {

constexpr i64 kMinPartBytes = i64{5} << 20, kMaxParts = 10'000;  // limits of S3

}  // namespace

S3Transfer::S3Transfer(const S3Settings& settings, i64 part_bytes, int connections)
    : part_bytes_(part_bytes), threads_(connections) {
  for (int i = 0; i < connections; ++i) connections_.push_back({S3Client(settings), AlignedBytes(part_bytes)});
}

/// Calls f for each part, on all connections; rethrows the first error after all have ended.
void S3Transfer::run_parts(i64 count, const std::function<void(Connection&, i64 part)>& f) {
  std::atomic<i64> next = 0;
  std::vector<std::future<void>> workers;
  for (Connection& connection : connections_) {
    workers.push_back(threads_.submit([&] {
      try {
        for (i64 part = next++; part < count; part = next++) f(connection, part);
      } catch (...) {
        next = count;
        throw;
      }
    }));
    if (std::ssize(workers) == count) break;
  }
  for (const std::future<void>& worker : workers) worker.wait();
  for (std::future<void>& worker : workers) worker.get();
}

void S3Transfer::upload(const Path& file, const S3Path& to) {
  const MappedFile content(file);
  if (std::ssize(content.bytes()) <= part_bytes_)
    client().put(to, content.bytes());
  else
    upload_parts(content.bytes(), to);
}

void S3Transfer::upload_parts(std::span<const std::byte> content, const S3Path& to) {
  const i64 size = std::ssize(content);
  const i64 part_bytes = std::max({part_bytes_, kMinPartBytes, ceil_div(size, kMaxParts)});
  std::vector<std::string> etags(static_cast<std::size_t>(ceil_div(size, part_bytes)));
  const std::string upload = client().begin_upload(to);
  try {
    run_parts(std::ssize(etags), [&](Connection& connection, i64 part) {
      const i64 begin = part * part_bytes, count = std::min(part_bytes, size - begin);
      const auto bytes = content.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      etags[static_cast<std::size_t>(part)] = connection.client.put_part(to, upload, static_cast<int>(part) + 1, bytes);
    });
    client().complete_upload(to, upload, etags, size);
  } catch (...) {
    client().abort_upload(to, upload);
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

}  // namespace mcpp

// File that several processes write concurrently.
#pragma once
#include <algorithm>
#include <span>

#include "base/file.h"
#include "base/integer_math.h"

namespace mcpp {

/// Range of full blocks within bytes [first, last) of a file. The process that produced the bytes writes these blocks;
/// process 0 writes the partial blocks, which also contain bytes of neighboring units. No two processes write to the
/// same page, which would corrupt data when the page caches of two hosts differ.
struct AlignedBlockRange {
  static constexpr i64 kBytes = i64{64} << 10;  ///< at least the page size of any host

  AlignedBlockRange(i64 first, i64 last)
      : begin(std::min(round_up(first, kBytes), last)), end(std::max(begin, last / kBytes * kBytes)) {}

  i64 begin, end;
};

/// File written at given offsets. Thread-safe.
class SharedOutputFile {
 public:
  /// Opens the file; creates it if it does not exist.
  explicit SharedOutputFile(Path path);
  ~SharedOutputFile();
  SharedOutputFile(const SharedOutputFile&) = delete;
  SharedOutputFile& operator=(const SharedOutputFile&) = delete;

  void write_at(i64 offset, std::span<const std::byte> bytes) const;
  /// Makes everything that this process wrote durable.
  void sync() const;
  /// Truncates the file to `bytes`.
  void truncate(i64 bytes) const;

  const Path& path() const { return path_; }

 private:
  Path path_;
  int descriptor_;
};

}  // namespace mcpp

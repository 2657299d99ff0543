// One file that several processes write together.
#pragma once
#include <algorithm>
#include <span>

#include "base/file.h"
#include "base/rounding.h"

namespace mcpp {

/// The whole blocks of bytes first .. last of a file. Only who made those bytes writes these blocks, and only process 0
/// the others, in which they meet with their neighbours: no two write to the same page, which the caches of two
/// machines would not survive.
struct WholeBlocks {
  static constexpr i64 kBytes = i64{64} << 10;  ///< no page is larger

  WholeBlocks(i64 first, i64 last)
      : begin(std::min(round_up(first, kBytes), last)), end(std::max(begin, last / kBytes * kBytes)) {}

  i64 begin, end;
};

/// Threads may write at once.
class JoinedFile {
 public:
  /// Opens what another one made, or makes it.
  explicit JoinedFile(Path path);
  ~JoinedFile();
  JoinedFile(const JoinedFile&) = delete;
  JoinedFile& operator=(const JoinedFile&) = delete;

  void write_at(i64 offset, std::span<const std::byte> bytes) const;
  /// What this process wrote is on the disk.
  void sync() const;
  /// Whatever stood behind is gone.
  void set_size(i64 bytes) const;

  const Path& path() const { return path_; }

 private:
  Path path_;
  int descriptor_;
};

}  // namespace mcpp

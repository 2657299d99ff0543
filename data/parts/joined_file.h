// One file that several processes write together.
#pragma once
#include <functional>
#include <span>

#include "base/file.h"

namespace mcpp {

/// A file of which the content comes piece by piece to all of its writers, in the same order, each piece with the
/// writer that has it at hand. Each writes the blocks that begin in pieces of its own: none writes where another one
/// does, not even to the same page, which the caches of two machines would not survive.
class JoinedFile {
 public:
  static constexpr i64 kBlockBytes = i64{2} << 20;  ///< no page is larger

  using Content = std::function<std::span<const std::byte>()>;

  /// Opens what another one made, or makes it; `writer` is this process.
  JoinedFile(Path path, int writer);
  ~JoinedFile();
  JoinedFile(const JoinedFile&) = delete;
  JoinedFile& operator=(const JoinedFile&) = delete;

  /// The next `bytes`. `content` gives them, and is only asked where this process writes some of them.
  void append(i64 bytes, int owner, const Content& content);
  /// What this process wrote is on the disk.
  void sync() const;

  i64 size() const { return size_; }  ///< of what came
  const Path& path() const { return path_; }

 private:
  void write_at(i64 offset, std::span<const std::byte> bytes) const;

  Path path_;
  int writer_, descriptor_;
  i64 size_ = 0;
  int block_owner_ = 0;  // of the block in which the file ends so far
};

}  // namespace mcpp

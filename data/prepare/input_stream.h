// The bytes of a file or pipe; of a gzip or zstd file, recognised by its content, those that are packed in it.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/file.h"
#include "data/prepare/unpacker.h"

namespace mcpp {

class InputStream {
 public:
  /// BadInput when it cannot be opened: no such file, a link that leads nowhere, a directory, a device, a pipe that
  /// nobody opens for writing within ten seconds.
  explicit InputStream(const Path& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// The next bytes, as many as there are at once and fit; 0 only at the end. A packed file is one or more members, one
  /// behind the other, of gzip perhaps with zero bytes after the last, as gunzip takes it. BadInput for members that
  /// are damaged or end early, and for anything else that follows one: what was read until then is not all.
  std::size_t read(std::span<char> out);
  /// The byte of the file that read() begins with; for a regular file that is not packed, before anything is read.
  void skip_to(u64 offset);

  const char* packing() const { return unpacker_ ? unpacker_->format() : nullptr; }  ///< null when it is not packed
  bool is_regular_file() const { return is_regular_file_; }
  u64 bytes_consumed() const { return bytes_read_ - packed_.size(); }  ///< of the file as it lies on the disk

 private:
  std::size_t read_packed();
  std::size_t unpack(std::span<char> out);
  void begin_next_member();
  [[noreturn]] void damaged(const std::string& why) const;

  Path path_;
  int descriptor_ = -1;
  bool is_regular_file_ = false;
  std::vector<unsigned char> buffer_;
  std::span<const unsigned char> packed_;  // of buffer_: read, not used yet
  u64 bytes_read_ = 0;
  bool at_end_ = false;           // of the file
  bool is_inside_member_ = true;  // not between two of them
  bool may_hold_output_ = false;  // the unpacker, for want of room
  std::unique_ptr<Unpacker> unpacker_;
};

}  // namespace mcpp

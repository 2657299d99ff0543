// Byte stream of a file or pipe; gzip and zstd are detected by content and decompressed.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/types.h"

namespace mcpp {

// Decompression of gzip and zstd.

/// Streaming decompressor. A compressed file is a sequence of independent members, which zstd calls frames.
class Decompressor {
 public:
  static constexpr std::size_t kMagicBytes = 4;  ///< bytes that is_member_start() examines

  virtual ~Decompressor() = default;
  virtual const char* format() const = 0;  ///< "gzip" or "zstd"
  virtual const char* member() const = 0;  ///< name in messages: "gzip member" or "zstd frame"
  /// Returns true if a member begins with these bytes. Fewer than kMagicBytes are passed only at the end of a file.
  virtual bool is_member_start(std::span<const unsigned char> bytes) const = 0;
  /// Returns true if zero padding may follow the last member, as on tapes.
  virtual bool allows_padding() const = 0;

  struct Step {
    std::size_t consumed = 0, produced = 0;  ///< bytes consumed from the input and written to the output
    bool ends_member = false;
    std::string damage = {};  ///< description of the damage; empty if undamaged
  };
  /// Decompresses as much input as is available and fits the output. Output that does not fit may be retained; a call
  /// with empty input retrieves it.
  virtual Step decompress(std::span<const unsigned char> compressed, std::span<char> out) = 0;
  /// Starts the next member after a step that ended one.
  virtual void begin_member() = 0;
};

/// Creates the decompressor for a file that begins with these bytes (as for is_member_start()). Returns null if the
/// bytes are not the beginning of a compressed file.
std::unique_ptr<Decompressor> make_decompressor(std::span<const unsigned char> begin);

class InputStream {
 public:
  /// Opens the file; an object (s3://) is copied to the cache of the node first. Throws BadInput if that fails: missing
  /// file, dangling link, directory, device, or a pipe without a writer for ten seconds.
  explicit InputStream(const Path& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Reads the bytes that are available and fit; returns 0 only at the end. A compressed file is a sequence of members;
  /// gzip allows zero padding after the last, as gunzip does. Throws BadInput for damaged or truncated members and for
  /// trailing garbage.
  std::size_t read(std::span<char> out);
  /// Sets the file position of the first read(). Only for uncompressed regular files, before any read().
  void seek(u64 offset);

  const char* compression_name() const {
    return decompressor_ ? decompressor_->format() : nullptr;
  }  ///< nullptr if not compressed
  bool is_regular_file() const { return is_regular_file_; }
  u64 bytes_consumed() const { return bytes_read_ - compressed_.size(); }  ///< bytes of the file on disk

 private:
  std::size_t read_compressed();
  std::size_t decompress(std::span<char> out);
  void begin_next_member();
  [[noreturn]] void fail_damaged(const std::string& why) const;

  Path path_;
  int descriptor_ = -1;
  bool is_regular_file_ = false;
  std::vector<unsigned char> buffer_;
  std::span<const unsigned char> compressed_;  // view of buffer_: read but not yet consumed
  u64 bytes_read_ = 0;
  bool is_at_end_ = false;           // end of the file was reached
  bool is_inside_member_ = true;     // false between two members
  bool has_pending_output_ = false;  // the decompressor may hold output that did not fit
  std::unique_ptr<Decompressor> decompressor_;
};

}  // namespace mcpp

// Decompression of gzip and zstd.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/types.h"

namespace mcpp {

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
  /// Decompresses as much as is available and fits. May hold back output until there is space, which a call with empty
  /// input retrieves.
  virtual Step decompress(std::span<const unsigned char> compressed, std::span<char> out) = 0;
  /// Starts the next member after a step that ended one.
  virtual void begin_member() = 0;
};

/// Creates the decompressor for a file that begins with these bytes (as for is_member_start()). Returns null if the
/// file is not compressed.
std::unique_ptr<Decompressor> make_decompressor(std::span<const unsigned char> begin);

}  // namespace mcpp

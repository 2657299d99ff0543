// From packed bytes to those that are packed in them: gzip and zstd.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/types.h"

namespace mcpp {

/// A packed file is members one behind the other, each of which stands for itself; zstd calls them frames.
class Unpacker {
 public:
  static constexpr std::size_t kMagicBytes = 4;  ///< that begins_member() looks at

  virtual ~Unpacker() = default;
  virtual const char* format() const = 0;  ///< "gzip", "zstd"
  virtual const char* member() const = 0;  ///< as the format calls it: "gzip member", "zstd frame"
  /// Whether a member begins with these bytes, of which there are fewer than kMagicBytes only at the end of a file.
  virtual bool begins_member(std::span<const unsigned char> bytes) const = 0;
  /// Whether zero bytes may follow the last member, as on tapes.
  virtual bool may_be_padded() const = 0;

  struct Step {
    std::size_t taken = 0, given = 0;  ///< of what came in, of what went out
    bool ends_member = false;
    std::string damage = {};  ///< what is wrong; empty = nothing
  };
  /// As much as there is and fits. Some of the output may be kept back until there is room, with nothing coming in.
  virtual Step unpack(std::span<const unsigned char> packed, std::span<char> out) = 0;
  /// Another one, after a step that ended one.
  virtual void begin_member() = 0;
};

/// For a file that begins with these bytes, as begins_member() takes them; null when it is not packed.
std::unique_ptr<Unpacker> make_unpacker(std::span<const unsigned char> begin);

}  // namespace mcpp

// A file to which a running training adds what it has to tell.
#pragma once
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/kept_ref.h"
#include "base/log.h"

namespace mcpp {

/// Grows by whole pieces, each written through at once, so that a killed run keeps what it told. A disk that fills up
/// costs pieces, never the training: it warns once and goes on trying; a piece is written whole or not at all.
class AppendFile {
 public:
  AppendFile() = default;  ///< writes nothing
  /// Opens `path`, or makes it, in a folder that is there. `what` is how messages call its content: "metrics". BadInput
  /// when it cannot be opened. The log must outlive this.
  AppendFile(Path path, std::string what, KeptRef<Log> log);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  bool is_open() const { return descriptor_ >= 0; }
  void append(std::string_view piece);

 private:
  Path path_;
  std::string what_;
  const Log* log_ = nullptr;
  int descriptor_ = -1;
  bool has_warned_ = false;
};

}  // namespace mcpp

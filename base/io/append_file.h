// Append-only file for the records of a training run.
#pragma once
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "base/stored_ref.h"

namespace mcpp {

/// Append-only file of records. Each record is written immediately, so that a killed run loses none. A full disk does
/// not stop training: logs a warning once and keeps trying. A record is written completely or not at all.
class AppendFile {
 public:
  AppendFile() = default;  ///< writes nothing
  /// Opens or creates `path` in an existing folder. `what` names the content in messages, such as "metrics". Throws
  /// BadInput if the file cannot be opened.
  AppendFile(Path path, std::string what, StoredRef<Log> log);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  bool is_open() const { return descriptor_ >= 0; }
  void append(std::string_view record);

 private:
  Path path_;
  std::string content_name_;
  const Log* log_ = nullptr;
  int descriptor_ = -1;
  bool has_warned_ = false;
};

}  // namespace mcpp

// TensorBoard log of a run: a folder with one event file per start of the run.
#pragma once
#include <functional>
#include <string_view>

#include "base/io/append_file.h"
#include "megatron_cpp/logging/event_file.h"

namespace mcpp {

/// Writes one event file, on a single rank. A full disk loses events but does not stop training (AppendFile).
class TensorboardWriter {
 public:
  /// Creates the folder; writes nothing if the path is empty. Throws BadInput, naming logging.tensorboard_dir, if the
  /// folder cannot be created or written to.
  TensorboardWriter(Path folder, StoredRef<Log> log);

  /// Returns true if an event of an earlier start of the run is still valid.
  using KeepEventFn = std::function<bool(i64 step, std::string_view tag)>;
  /// Prepares the folder; call it before the first write(). A resumed run removes from this program's event files the
  /// events that `should_keep` rejects and those truncated by a crash, so that no step appears twice. A new run
  /// (`should_keep` is null) renames existing files to old_events.*, which TensorBoard ignores.
  void begin(const KeepEventFn& should_keep);
  bool is_enabled() const { return file_.is_open(); }
  void write(const EventRecord& event) { file_.append(framed_record(event.bytes())); }

 private:
  Path folder_;
  const Log& log_;
  AppendFile file_;
};

/// Returns the time in seconds since 1970.
double wall_seconds();

}  // namespace mcpp

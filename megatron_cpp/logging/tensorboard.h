// A run as TensorBoard shows it: a folder of event files, one for each start of the run.
#pragma once
#include <functional>
#include <string_view>

#include "megatron_cpp/logging/append_file.h"
#include "megatron_cpp/logging/event_file.h"

namespace mcpp {

/// Writes one event file; by one rank. A disk that fills up costs events, never the training (AppendFile).
class TensorboardWriter {
 public:
  /// Makes the folder. An empty path: nothing is written. BadInput, which names logging.tensorboard_dir, when there can
  /// be no such folder, or nothing be written there. The log must outlive this.
  TensorboardWriter(Path folder, KeptRef<Log> log);

  /// Of an event that an earlier start of the run wrote: whether it still holds.
  using Keeps = std::function<bool(i64 step, std::string_view tag)>;
  /// Before the first write(). A run that goes on drops, of the event files of this program in the folder, what `keeps`
  /// refuses and what a crash cut off; so no reader sees a step twice, whatever it makes of restarts. One that begins
  /// anew (`keeps` is null) sets them aside, as old_events.*, which TensorBoard does not read.
  void begin(const Keeps& keeps);
  bool is_on() const { return file_.is_open(); }
  void write(const EventRecord& event) { file_.append(framed_record(event.bytes())); }

 private:
  Path folder_;
  const Log& log_;
  AppendFile file_;
};

/// Seconds since 1970, as events have it.
double wall_seconds();

}  // namespace mcpp

// TensorBoard's event files: protocol buffers "Event" in TFRecord frames, which are a length, its checksum, the bytes,
// theirs. What is written here is what tensorboard/compat/proto/{event,summary,tensor}.proto declare.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// CRC-32C (Castagnoli) of the bytes, as iSCSI has it (RFC 3720, B.4).
u32 crc32c(std::string_view bytes);
/// TFRecord's: rotated, and a constant added, so that the checksum of bytes with checksums in them is sound.
u32 masked_crc32c(std::string_view bytes);

/// The record as it stands in a file.
std::string framed_record(std::string_view record);
/// Reads the record at the beginning of `rest`, and goes on behind it. False, with `rest` as it was, at the end and
/// where a record is cut off or damaged.
bool next_record(std::string_view& rest, std::string_view& record);

/// Counts of numbers between limits.
struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::span<const double> limits;  ///< upper ones, rising
  std::span<const double> counts;  ///< as many
};

/// One event, as it is filled: values of one step. Scalars are fp32 in the file.
class EventRecord {
 public:
  /// `wall_time`: seconds since 1970. TensorBoard's axis "step" counts in what `step` is.
  EventRecord(double wall_time, i64 step);
  /// The first record of every file.
  static std::string file_header(double wall_time);

  void add_scalar(std::string_view tag, double value);
  void add_histogram(std::string_view tag, const Histogram& histogram);
  /// Markdown, for TensorBoard's page of texts.
  void add_text(std::string_view tag, std::string_view text);
  bool is_empty() const { return summary_.empty(); }
  /// The message, without its frame.
  std::string bytes() const;

 private:
  double wall_time_;
  i64 step_;
  std::string summary_;  // its encoded values
};

/// What tells whose an event is.
struct EventKey {
  i64 step = 0;
  std::string tag;  ///< of its first value; empty: it has none
};
/// BadInput, which names `source`, when the bytes are no message.
EventKey key_of_event(std::string_view record, const std::string& source);

}  // namespace mcpp

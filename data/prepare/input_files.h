// The text files that a command was given, one after another.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/prepare/document_reader.h"

namespace mcpp {

/// `inputs` with every pattern (*, ?, [a-z], as the shell has them) replaced by the files that match it, in the order
/// of their names; a file that has such a name itself is no pattern. BadInput for what is not there and for a pattern
/// that nothing matches.
std::vector<std::string> matching_files(const std::vector<std::string>& inputs);

/// The pieces of all files in order.
class InputFiles {
 public:
  struct Piece {
    Path path;
    TextPiece piece;
    u64 progress = 0;  ///< bytes of all files, as they lie on the disk, read up to here
  };

  /// `inputs` as for matching_files(). Each file is cut as parse_piece() wants it, in pieces of about `piece_bytes`.
  InputFiles(const std::vector<std::string>& inputs, DocumentFormat format, std::size_t piece_bytes);

  std::optional<Piece> next();  ///< nothing after the last

  const std::vector<std::string>& paths() const { return paths_; }
  const DocumentFormat& format() const { return format_; }
  /// Returns for each path whether it is read as JSON lines.
  const std::vector<bool>& are_json_lines() const { return are_json_lines_; }
  u64 total_bytes() const { return total_bytes_; }  ///< of all files; 0 when a pipe is among them, which has no size

 private:
  std::vector<std::string> paths_;
  std::vector<bool> are_json_lines_;
  DocumentFormat format_;
  std::size_t piece_bytes_, file_ = 0;
  std::optional<TextSource> source_;
  u64 total_bytes_ = 0, finished_bytes_ = 0;
};

/// How far a command is, such as "[====>     ] 37 %, 12.1 MiB/s, 8.0s left"; without a total, "51 MiB, 12.1 MiB/s".
std::string describe_progress(u64 done_bytes, u64 total_bytes, double seconds);

}  // namespace mcpp

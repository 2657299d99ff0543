// Sequence of the text files given to a command.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/preprocess/document_reader.h"

namespace mcpp {

/// Returns `inputs` with every pattern (*, ?, [a-z] as in a shell) replaced by the matching files, sorted by name. The
/// exact name of an existing file is not treated as a pattern. Patterns of objects (s3://) may contain * and ?. Throws
/// BadInput for missing files and for patterns without a match.
std::vector<std::string> expand_patterns(const std::vector<std::string>& inputs);

/// Reads the chunks of all files in order.
class InputFiles {
 public:
  struct Chunk {
    Path path;
    TextChunk chunk;
    u64 progress = 0;  ///< bytes read so far on disk, over all files
  };

  /// `inputs` as for expand_patterns(). Files are split into chunks of about `chunk_bytes`, as parse_chunk() requires.
  InputFiles(const std::vector<std::string>& inputs, DocumentFormat format, std::size_t chunk_bytes);

  std::optional<Chunk> next();  ///< std::nullopt after the last chunk

  const std::vector<std::string>& paths() const { return paths_; }
  const DocumentFormat& format() const { return format_; }
  /// Returns for each path whether it is read as JSON lines.
  const std::vector<bool>& are_json_lines() const { return are_json_lines_; }
  u64 total_bytes() const { return total_bytes_; }  ///< size of all files; 0 if one is a pipe, which has no size

 private:
  std::vector<std::string> paths_;
  std::vector<bool> are_json_lines_;
  DocumentFormat format_;
  std::size_t chunk_bytes_, file_ = 0;
  std::optional<TextSource> source_;
  u64 total_bytes_ = 0, finished_bytes_ = 0;
};

/// Returns a progress text such as "[====>     ] 37 %, 12.1 MiB/s, 8.0s left"; if the total is unknown, "51 MiB, 12.1
/// MiB/s".
std::string format_progress(u64 done_bytes, u64 total_bytes, double seconds);

}  // namespace mcpp

// Work unit of preprocessing. Units depend only on the input files, not on the number of ranks that share them.
#pragma once
#include <string>
#include <vector>

#include "data/preprocess/document_reader.h"

namespace mcpp {

struct WorkUnit {
  Path path;
  TextRange range;               ///< the entire file if it is compressed or small
  std::string file_stamp;        ///< size and modification time of the file
  std::string before;            ///< identifies the preceding units, on which the output range of this unit depends
  bool is_json_lines = false;    ///< JSON lines rather than plain text
  i64 bytes = 0;                 ///< bytes of the unit on disk
  std::string identity() const;  ///< text that identifies the unit and its content
};

/// Returns the approximate unit size: large enough to use all threads of a rank, small enough to distribute over many
/// ranks.
i64 choose_unit_bytes(u64 total_bytes);

/// Splits `files` into units, in order. Tokenizing them yields the same tokens as tokenizing the files. Throws BadInput
/// for a pipe, which cannot be split, and for unreadable files.
std::vector<WorkUnit> make_work_units(const std::vector<std::string>& files, const DocumentFormat& format,
                                      i64 unit_bytes);

/// Throws BadInput if the file is not the one that the unit was made from: it was changed, or this host sees a
/// different file.
void check_file_unchanged(const WorkUnit& unit);

/// Returns `range` with the line number of its start, which is counted by reading the file. Used in error messages.
TextRange add_line_number(const Path& path, TextRange range);

}  // namespace mcpp

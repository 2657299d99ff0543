// The input of preprocess in units of work that depend on the files alone, however many ranks share them.
#pragma once
#include <string>
#include <vector>

#include "data/prepare/document_reader.h"

namespace mcpp {

struct WorkUnit {
  Path path;
  TextRange range;               ///< a whole file, where it is packed or small
  std::string of_file;           ///< its size and when it was changed
  std::string before;            ///< what the units before it are, which is where its tokens belong
  bool is_json_lines = false;    ///< instead of plain text
  i64 bytes = 0;                 ///< of the file as it lies on the disk, that belong to the unit
  std::string identity() const;  ///< what it is, so that another one is not taken for it
};

/// About so many bytes a unit has: enough for the threads of a rank, few enough for many ranks.
i64 unit_bytes_for(u64 total_bytes);

/// The units of `files` in order; together their texts are those of the files, and tokenising them gives the same
/// tokens. BadInput for a pipe, which has no parts, and for what cannot be read.
std::vector<WorkUnit> work_units(const std::vector<std::string>& files, const DocumentFormat& format, i64 unit_bytes);

/// BadInput when its file is not the one that it was made of: where another machine sees another, or when it was
/// changed since.
void check_file_of(const WorkUnit& unit);

/// `range` with the number of its first line, which is counted in the file; for messages.
TextRange with_line_number(const Path& path, TextRange range);

}  // namespace mcpp

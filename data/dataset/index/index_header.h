// Header of an .idx file; see data/dataset/index/indexed_dataset.h.
#pragma once
#include "data/dataset/index/indexed_dataset.h"

namespace mcpp {

struct IndexHeader {
  TokenType type{};
  u64 sequences = 0, document_entries = 0;  ///< document_entries >= 1; both are bounded by the file size
};

/// Reads the header. Throws BadInput if the file is truncated or not an .idx file of integer tokens.
IndexHeader read_index_header(const MappedFile& idx);

}  // namespace mcpp

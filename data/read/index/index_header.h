// The head of an .idx file, data/read/index/indexed_dataset.h.
#pragma once
#include "data/read/index/indexed_dataset.h"

namespace mcpp {

struct IndexHeader {
  TokenType type{};
  u64 sequences = 0, document_entries = 0;  ///< at least one entry; as many of both as fit in the file
};

/// BadInput when the file is no .idx of whole numbers, or is cut.
IndexHeader read_index_header(const MappedFile& idx);

}  // namespace mcpp

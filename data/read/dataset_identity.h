// What tells a dataset from another one under the same name.
#pragma once
#include <string>

#include "base/file.h"

namespace mcpp {

/// Numbers of sequences, documents and tokens, and a checksum of each of the two files: of all of it up to 4 MiB,
/// beyond of 256 blocks of 16 KiB spread evenly over it, the first and the last among them, so that a start takes a
/// moment however large the files are. BadInput when a file is missing or no .idx; what else may be wrong,
/// IndexedDataset finds.
std::string dataset_identity(const Path& prefix);

}  // namespace mcpp

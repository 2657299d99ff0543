// Fingerprint that detects when a dataset was replaced under the same name.
#pragma once
#include <string>

#include "base/file.h"

namespace mcpp {

/// Returns the number of sequences, documents and tokens, and a checksum of each of the two files. A file up to 4 MiB
/// is checksummed entirely; a larger one is sampled in 256 evenly spaced blocks of 16 KiB, including the first and the
/// last, so that the cost does not grow with file size. Throws BadInput if a file is missing or is not an .idx file;
/// other damage is left to IndexedDataset.
std::string dataset_identity(const Path& prefix);

}  // namespace mcpp

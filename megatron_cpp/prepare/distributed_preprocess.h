// Preprocessing distributed over ranks that can be interrupted and resumed.
#pragma once
#include "comm/communicator.h"
#include "data/preprocess/preprocess.h"

namespace mcpp {

/// Returns true if an earlier run with this output left parts.
bool has_parts(const PreprocessOptions& options);

/// Writes the same files as run_preprocess(). Collective over `ranks`, which must share a file system. Each rank
/// repeatedly takes the next unit of the input and tokenizes it on `workers` threads. Finished units survive if the run
/// is killed; the next run, on any number of ranks, continues from them. An error on any rank is thrown on all.
PreprocessResult preprocess_in_parts(const PreprocessOptions& options, i64 workers, Communicator& ranks,
                                     const Log& log);

}  // namespace mcpp

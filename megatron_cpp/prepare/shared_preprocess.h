// Preprocessing that ranks share, and that goes on after it was killed.
#pragma once
#include "comm/communicator.h"
#include "data/prepare/preprocess.h"

namespace mcpp {

/// Whether an earlier run with this output left parts.
bool has_parts(const PreprocessOptions& options);

/// The same files as run_preprocess(), by all of `ranks` together, of which each takes the next unit of the input when
/// it has done the one before, on `workers` threads. All see the same folders. Units that are done stay when the run
/// is killed; the next one goes on, on as many ranks as it likes. An error on any rank is thrown on all.
PreprocessResult preprocess_in_parts(const PreprocessOptions& options, i64 workers, Communicator& ranks,
                                     const Log& log);

}  // namespace mcpp

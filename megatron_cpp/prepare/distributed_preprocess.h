// Preprocessing that is distributed over ranks and can be interrupted and resumed.
#pragma once
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/preprocess/preprocess.h"

namespace mcpp {

// Dynamic distribution of indexed chunks of work over ranks.

/// Notification that the main phase of a chunk is done; only its final phase remains.
struct WorkUpdate {
  i64 chunk = 0;
  int rank = 0;  ///< rank that works on it
  std::string text;
};

/// Progress of all ranks. Each update is reported once, identically on all ranks.
struct WorkProgress {
  i64 chunks = 0;                   ///< number of chunks that have ended
  double amount = 0;                ///< total of the amounts passed to `add`
  std::vector<WorkUpdate> updates;  ///< chunks whose final phase begins
  std::vector<i64> ended;           ///< chunks that have ended
};

/// Final phase of a chunk, such as waiting for other ranks or for a disk. Runs on a separate thread, one chunk at
/// a time, while the rank works on the next chunks. Must return when `stop` is requested.
using FinalizeFn = std::function<void(const std::stop_token& stop)>;

/// Work on one chunk, run on a thread of this rank. Returns the text that is sent to all ranks and the final phase.
/// `add` reports progress. It throws if the work is canceled; do not catch this exception.
struct ProcessedChunk {
  std::string text;
  FinalizeFn end;
};
using ChunkFn = std::function<ProcessedChunk(i64 chunk, const std::function<void(double amount)>& add)>;

/// Processes every chunk 0 .. chunks - 1 once, on some rank. Collective over `ranks`. The ranks communicate several
/// times a second, so waits are too short to trigger a watchdog. An error on any rank stops the work and is thrown on
/// all. `progress` is called on each rank after every exchange.
void distribute_work(Communicator& ranks, i64 chunks, const ChunkFn& work,
                     const std::function<void(const WorkProgress&)>& progress);

/// Returns true if parts of an earlier run with this output exist.
bool has_parts(const PreprocessOptions& options);

/// Writes the same files as run_preprocess(). Collective over `ranks`, which must share a file system. Each rank
/// repeatedly tokenizes the next unit of the input on `workers` threads. Finished units survive if the run is killed;
/// the next run, on any number of ranks, continues from them. An error on any rank is thrown on all.
PreprocessResult preprocess_in_parts(const PreprocessOptions& options, i64 workers, Communicator& ranks,
                                     const Log& log);

}  // namespace mcpp

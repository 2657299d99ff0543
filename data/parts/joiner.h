// Parts that are joined while others are still made.
#pragma once
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/parts/assemble.h"

namespace mcpp {

/// One process' share of joining the parts of all units, in a thread of its own. All processes add the same.
class PartsJoiner {
 public:
  /// `units` outlive it; this is process `process`.
  PartsJoiner(const PartsFolder& folder, const std::vector<WorkUnit>& units, const PreprocessOptions& options,
              int process);

  /// The part of this unit is there, and process `owner` made it, which is to copy it. Each unit once, in any order;
  /// they are joined in theirs.
  void add(std::size_t unit, PartNote note, int owner);
  /// Throws what went wrong so far.
  void check();
  /// When all were added: waits until what is this process' share is on the disk. Errors as of PartsAssembly.
  void finish();
  /// When all processes have finished: names the datasets' files. Only process 0.
  std::vector<PreprocessOutput> publish() const;

  i64 empty_documents() const;                              ///< after finish()
  i64 malformed_lines() const { return malformed_lines_; }  ///< of the parts that were added

 private:
  struct Part {
    PartNote note;
    int owner;
  };

  void run(const std::stop_token& stop);

  const std::vector<WorkUnit>& units_;
  std::vector<std::unique_ptr<PartsAssembly>> keys_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::optional<Part>> waiting_;  // [unit]
  std::size_t joined_ = 0;                    // units
  std::exception_ptr error_;
  i64 malformed_lines_ = 0;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace mcpp

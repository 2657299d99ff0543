// From parts to the dataset that one process would have written.
#pragma once
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/parts/joined_file.h"
#include "data/parts/parts_folder.h"
#include "data/prepare/indexed_writer.h"

namespace mcpp {

/// One key of all parts: what of them is not at its place yet, and the index.
class AssemblyOfKey {
 public:
  AssemblyOfKey(const PartsFolder& folder, std::size_t key);

  /// The part of the next unit.
  void add(const PartContent& part);
  /// After the last: all tokens are on the disk. BadInput where there is no text at all.
  void finish();
  /// Names the dataset's files.
  PreprocessOutput publish() const;

  i64 empty_documents() const { return empty_documents_; }

 private:
  void add_document(i64 tokens);

  std::size_t key_;
  std::string prefix_;
  bool keep_empty_;
  JoinedFile tokens_;
  DatasetInfo info_;  // of the parts, with sums of bytes and words
  IndexContent index_;
  i64 size_ = 0;  // bytes
  i64 empty_documents_ = 0;
};

/// What process 0 does with parts, in a thread of its own, while others are still made.
class PartsAssembly {
 public:
  /// `folder` and `units` outlive it.
  PartsAssembly(const PartsFolder& folder, const std::vector<WorkUnit>& units);

  /// The part of this unit is there, with its places. Each unit once, in any order.
  void add(std::size_t unit);
  /// Throws what went wrong so far.
  void check();
  /// When all were added: waits until all tokens are on the disk. Errors as of AssemblyOfKey.
  void finish();
  /// Names the datasets' files.
  std::vector<PreprocessOutput> publish() const;

  i64 empty_documents() const;                              ///< after finish()
  i64 malformed_lines() const { return malformed_lines_; }  ///< after finish()

 private:
  void run(const std::stop_token& stop);

  const PartsFolder& folder_;
  const std::vector<WorkUnit>& units_;
  std::vector<std::unique_ptr<AssemblyOfKey>> keys_;
  i64 malformed_lines_ = 0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<bool> there_;    // [unit]
  std::size_t assembled_ = 0;  // units
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace mcpp

// Assembles the parts of a preprocessing run into the dataset that a single process would have written.
#pragma once
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "data/preprocess/distributed/parts_folder.h"
#include "data/preprocess/distributed/shared_output_file.h"
#include "data/preprocess/indexed_writer.h"

namespace mcpp {

/// Assembler for one key of all parts. Writes the tokens that are not in the joined file yet and builds the index.
class KeyAssembler {
 public:
  KeyAssembler(const PartsFolder& folder, std::size_t key);

  /// Adds the part of the next unit.
  void add(const PartContent& part);
  /// Makes all tokens durable after the last part. Throws BadInput if there is no text.
  void finish();
  /// Renames the dataset files to their final names.
  PreprocessOutput publish() const;

  i64 empty_documents() const { return empty_documents_; }

 private:
  void add_document(i64 tokens);

  const PartsFolder& folder_;
  std::size_t key_;
  std::string prefix_;
  bool is_loss_mask_, keep_empty_;
  SharedOutputFile tokens_;
  DatasetInfo info_;  // merged metadata of the parts; bytes and words are summed
  IndexContent index_;
  i64 size_ = 0;  // size of the joined file in bytes
  i64 empty_documents_ = 0;
};

/// Background thread of process 0 that assembles parts while other parts are still being processed.
class PartAssembler {
 public:
  /// Keeps references to `folder` and `units`.
  PartAssembler(const PartsFolder& folder, const std::vector<WorkUnit>& units);

  /// Reports that the part of this unit exists and has output ranges. Call once per unit, in any order.
  void add(std::size_t unit);
  /// Rethrows an error of the thread, if any.
  void check();
  /// Waits until all tokens are durable. Call after all units were added. Throws like KeyAssembler::finish().
  void finish();
  /// Renames the dataset files to their final names.
  std::vector<PreprocessOutput> publish() const;

  i64 empty_documents() const;                              ///< valid after finish()
  i64 malformed_lines() const { return malformed_lines_; }  ///< valid after finish()

 private:
  void assemble(std::size_t unit);

  const PartsFolder& folder_;
  const std::vector<WorkUnit>& units_;
  std::vector<std::unique_ptr<KeyAssembler>> keys_;
  i64 malformed_lines_ = 0;
  std::vector<bool> has_part_;  // [unit] part exists
  std::size_t num_started_ = 0;
  std::deque<std::shared_future<void>> assembled_;  // parts being assembled
  ThreadPool thread_{1};                            // last member: uses all of the above
};

}  // namespace mcpp

// From parts to the dataset that one process would have written.
#pragma once
#include <optional>
#include <string>

#include "data/parts/dataset_parts.h"
#include "data/parts/joined_file.h"
#include "data/prepare/indexed_writer.h"

namespace mcpp {

/// One key of all parts, joined while they are made. Several processes do that together: each adds all parts, in order,
/// and copies the tokens that are its own to do; when all have finished, the first of them, 0, publishes.
class PartsAssembly {
 public:
  PartsAssembly(const PartsFolder& folder, std::size_t key, const PreprocessOptions& options, int process);

  /// The part of the next unit, whose tokens `owner` copies, but for a few at its begin. BadInput for a document that
  /// is too long.
  void add(const WorkUnit& unit, const PartNote& note, int owner);
  /// After the last part: what this process copied is on the disk. BadInput where there is no text at all.
  void finish() const;
  /// Names the dataset's files.
  PreprocessOutput publish() const;

  i64 empty_documents() const { return empty_documents_; }

 private:
  void add_tokens(const Path& prefix, const PartOfKey& part, int owner);
  /// Ends the document that is open; of a document without tokens the rules say what becomes.
  void end_document(int owner);
  void add_index(const Path& prefix, const PartOfKey& part);

  const PartsFolder& folder_;
  const PreprocessOptions& options_;
  std::size_t key_;
  std::string prefix_;
  bool publishes_;
  JoinedFile tokens_;
  DatasetInfo info_;         // of the parts, with sums of bytes and words
  IndexContent index_;       // lengths and documents only of who publishes
  std::optional<i64> open_;  // tokens of the document that goes on in the next part
  i64 empty_documents_ = 0;
};

}  // namespace mcpp

// From parts to the dataset that one process would have written.
#pragma once
#include <vector>

#include "data/parts/dataset_parts.h"
#include "data/prepare/indexed_writer.h"

namespace mcpp {

/// One key of all parts. Several processes may write its tokens together: one calls create(), all write(), and when all
/// have, one publish().
class PartsAssembly {
 public:
  /// `notes` of `units`, in order. BadInput for a document that is too long and where there is no text at all.
  PartsAssembly(const PartsFolder& folder, const std::vector<WorkUnit>& units, const std::vector<PartNote>& notes,
                std::size_t key, const PreprocessOptions& options);

  void create() const;
  /// Share `share` of `shares` of the tokens, durably.
  void write(int share, int shares) const;
  /// Names the dataset's files.
  PreprocessOutput publish() const;

  i64 empty_documents() const { return empty_documents_; }

 private:
  /// Tokens of a part, of `bytes` from `from` on, or an <eod>, and where they go.
  struct Copy {
    std::size_t part = 0;
    i64 from = 0, bytes = 0, to = 0;
    bool is_eod = false;
  };

  void add_part(std::size_t part, const PartOfKey& note);
  void add_copy(std::size_t part, i64 from, i64 tokens);
  /// Ends the document that is open; of a document without tokens the rules say what becomes.
  void end_document(std::size_t part);
  IndexContent index() const;
  Path file() const;
  std::string prefix() const;

  const PartsFolder& folder_;
  const PreprocessOptions& options_;
  std::vector<Path> parts_;
  std::vector<PartOfKey> notes_;
  std::string key_;
  TokenType type_{};
  DatasetInfo info_;
  std::vector<Copy> copies_;
  std::vector<i64> ended_;  // tokens, with <eod>, of the documents that lie in several parts, in order; 0 = left out
  std::optional<i64> open_;
  i64 bytes_ = 0, empty_documents_ = 0;
};

}  // namespace mcpp

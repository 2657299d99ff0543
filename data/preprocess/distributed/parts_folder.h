// Working folder of a preprocessing run that is shared by several processes or was interrupted. For each key it holds
// the joined file, into which each unit's tokens are written at their output range; for each finished unit it holds a
// part file, written last.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "data/dataset/dataset_info.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/distributed/work_units.h"
#include "data/preprocess/preprocess.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

// Result of tokenizing one unit.

/// One key of a part.
struct KeyPart {
  DatasetInfo info;                 ///< metadata of its tokens and of the documents that lie entirely within the part
  bool continues_document = false;  ///< the first document continues from the previous part
  bool is_head_complete = false;    ///< the document continued from the previous part ends in this part
  bool is_open = false;             ///< the last document began in this part and continues in the next part
  i64 head_tokens = 0;              ///< tokens of the first document, if continued
  i64 open_tokens = 0;              ///< tokens of the last document, if open
  i64 empty_documents = 0;

  TokenType token_type() const { return token_type_for_vocab(info.vocab_size); }
};

/// Location of one key of a part in the joined file.
struct OutputRange {
  i64 begin = 0, end = 0;  ///< byte offsets
  std::optional<i64>
      head_document;  ///< tokens of the document that continued from the previous part and ends here, with <eod>
  bool operator==(const OutputRange&) const = default;
};

struct PartMetadata {
  std::vector<KeyPart> keys;
  std::vector<OutputRange> output_ranges;  ///< [key]; empty until known
  i64 malformed_lines = 0;
};

/// Contents of a part file: metadata, and the data that is stored nowhere else.
struct PartContent {
  PartMetadata metadata;
  /// Lengths of the documents that are entirely within the part, by key. 0 for an empty document that is kept.
  std::vector<std::vector<i32>> lengths;
  std::vector<std::vector<std::byte>>
      edges;  ///< [key] tokens outside of full blocks (see AlignedBlockRange), if the part has output ranges
};

/// Serializes metadata as one line. `keys` are the names of the keys.
std::string serialize_metadata(const WorkUnit& unit, const std::vector<std::string>& keys,
                               const PartMetadata& metadata);
/// Parses metadata. Throws BadInput, naming the file, if it is damaged or belongs to a different unit.
PartMetadata parse_metadata(const WorkUnit& unit, const std::vector<std::string>& keys, const std::string& text,
                            const Path& file);

void write_part(const Path& file, const WorkUnit& unit, const std::vector<std::string>& keys, const PartContent& part);
/// Reads a part file. Throws BadInput like parse_metadata(), and also if the file is truncated.
PartContent read_part(const Path& file, const WorkUnit& unit, const std::vector<std::string>& keys);

class PartsFolder {
 public:
  /// Determines the path of the folder, which is next to the output datasets of `options`.
  PartsFolder(const PreprocessOptions& options, std::vector<std::string> keys);

  const Path& path() const { return path_; }
  const PreprocessOptions& options() const { return options_; }
  const std::vector<std::string>& keys() const { return keys_; }
  bool exists() const;
  /// Creates the folder or resumes from an interrupted run. Throws BadInput if that run used a different tokenizer,
  /// different options or an incompatible version of the program.
  void open(const Tokenizer& tokenizer) const;
  /// Removes the folder and its contents atomically: a killed run does not leave a half-removed folder.
  void remove() const;
  /// Removes the files that an interrupted remove() left behind.
  void remove_leftovers() const;

  /// Returns the path of the file into which the tokens of all parts are joined.
  Path shared_output_path(const std::string& key) const { return path_ / (key + ".bin"); }
  /// Returns the path for tokens of a unit that have no output range yet and do not fit in memory.
  Path tokens_path(const WorkUnit& unit, const std::string& key) const;
  Path part_path(const WorkUnit& unit) const;
  /// Returns the metadata of each unit whose part is present and complete. Removes everything else, such as parts of an
  /// input file that has changed, because their output ranges will be assigned to different units.
  std::vector<std::optional<PartMetadata>> retain_parts(const std::vector<WorkUnit>& units) const;
  /// Returns the metadata of a unit, or std::nullopt if its part is missing or incomplete.
  std::optional<PartMetadata> read_metadata(const WorkUnit& unit) const;
  PartContent read_part(const WorkUnit& unit) const;
  void write_part(const WorkUnit& unit, const PartContent& part) const;
  void remove_tokens(const WorkUnit& unit) const;

 private:
  std::string description(const Tokenizer& tokenizer) const;
  void check_tokens(const WorkUnit& unit, const PartMetadata& metadata) const;

  const PreprocessOptions& options_;
  std::vector<std::string> keys_;
  Path path_;
};

// Assignment of file positions to the tokens of units.

/// Computes the output ranges of a unit once the sizes of all earlier units are known. Every process is notified of all
/// units and computes identical ranges. Thread-safe.
class UnitPlacement {
 public:
  /// Keeps a reference to `units`.
  UnitPlacement(const PartsFolder& folder, const std::vector<WorkUnit>& units);

  /// Adds the metadata of a unit, once per unit, in any order. Throws BadInput if a document is too long or if a part
  /// was written at a different offset.
  void add(std::size_t unit, PartMetadata metadata);
  /// Waits until the output ranges of a unit are known and returns them, [key]. Returns std::nullopt if `stop` is
  /// requested first.
  std::optional<std::vector<OutputRange>> wait_for(std::size_t unit, const std::stop_token& stop);

 private:
  struct Key {
    std::string prefix;
    i64 end = 0;              // end of the tokens placed so far, in bytes
    std::optional<i64> open;  // tokens of the document that continues in the next unit
  };
  OutputRange next_output_range(Key& key, const WorkUnit& unit, const KeyPart& part) const;
  void assign_next_range(const PartMetadata& metadata);

  const std::vector<WorkUnit>& units_;
  bool append_eod_;
  std::vector<Key> keys_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::optional<PartMetadata>> pending_metadata_;  // [unit]
  std::vector<std::vector<OutputRange>> output_ranges_;        // [unit][key]; empty until known
};

}  // namespace mcpp

// Result of tokenizing one unit.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/dataset/dataset_info.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/distributed/work_units.h"

namespace mcpp {

/// One key of a part.
struct KeyPart {
  DatasetInfo info;        ///< metadata of its tokens and of the documents that lie entirely within the part
  bool continues = false;  ///< the first document started in the previous part
  bool head_ends = false;  ///< the continued document ends in this part
  bool is_open = false;    ///< the last document continues in the next part, unless it is the continued first one
  i64 head_tokens = 0;     ///< tokens of the first document, if continued
  i64 open_tokens = 0;     ///< tokens of the last document, if open
  i64 empty_documents = 0;

  TokenType token_type() const { return token_type_for_vocab(info.vocab_size); }
};

/// Location of one key of a part in the joined file.
struct OutputRange {
  i64 begin = 0, end = 0;            ///< in bytes
  std::optional<i64> head_document;  ///< tokens of the document that ends in this head, including the appended <eod>
  bool operator==(const OutputRange&) const = default;
};

struct PartMetadata {
  std::vector<KeyPart> keys;
  std::vector<OutputRange> output_ranges;  ///< [key]; empty until known
  i64 malformed_lines = 0;
};

/// Contents of a part file: the note and the data that is stored nowhere else.
struct PartContent {
  PartMetadata metadata;
  /// [key] lengths of the documents entirely within the part; 0 for a kept empty document
  std::vector<std::vector<i32>> lengths;
  std::vector<std::vector<std::byte>>
      edges;  ///< [key] tokens outside of whole blocks (see SharedOutputFile), if the part has places
};

/// Serializes a note as one line. `keys` are the names of the keys.
std::string serialize_metadata(const WorkUnit& unit, const std::vector<std::string>& keys,
                               const PartMetadata& metadata);
/// Parses a note. Throws BadInput, naming the file, if it is damaged or belongs to a different unit.
PartMetadata parse_metadata(const WorkUnit& unit, const std::vector<std::string>& keys, const std::string& text,
                            const Path& file);

void write_part(const Path& file, const WorkUnit& unit, const std::vector<std::string>& keys, const PartContent& part);
/// Reads a part file. Throws BadInput as parse_metadata(), and if the file is truncated.
PartContent read_part(const Path& file, const WorkUnit& unit, const std::vector<std::string>& keys);

}  // namespace mcpp

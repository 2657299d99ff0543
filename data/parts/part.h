// What became of a unit that was tokenised.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/parts/work_units.h"
#include "data/read/dataset_info.h"
#include "data/read/index/indexed_dataset.h"

namespace mcpp {

/// One key of a part.
struct PartOfKey {
  DatasetInfo info;        ///< of its tokens, with the documents that lie in it alone
  bool continues = false;  ///< its first document belongs to one that began in the part before
  bool head_ends = false;  ///< and ends it
  bool is_open = false;    ///< its last document goes on in the part behind; unless it is that first one
  i64 head_tokens = 0;     ///< of the first document, where it continues
  i64 open_tokens = 0;     ///< of the last, where it is open
  i64 empty_documents = 0;

  TokenType token_type() const { return token_type_for_vocab(info.vocab_size); }
};

/// Where one key of a part lies in the file of all.
struct Place {
  i64 begin = 0, end = 0;            ///< bytes
  std::optional<i64> head_document;  ///< tokens of the document that ends with its head, with the <eod> put behind that
  bool operator==(const Place&) const = default;
};

struct PartNote {
  std::vector<PartOfKey> keys;
  std::vector<Place> places;  ///< [key]; none before they are known
  i64 malformed_lines = 0;
};

/// The file of a part: the note, and what of the part does not lie elsewhere.
struct PartContent {
  PartNote note;
  std::vector<std::vector<i32>> lengths;  ///< [key] of the documents that lie in it alone; 0: empty, and kept
  std::vector<std::vector<std::byte>>
      edges;  ///< [key] tokens outside of whole blocks, see JoinedFile; where it has places
};

/// `keys`: their names. The text is a line.
std::string note_text(const WorkUnit& unit, const std::vector<std::string>& keys, const PartNote& note);
/// BadInput, naming the file, for what is damaged or of another unit.
PartNote parse_note(const WorkUnit& unit, const std::vector<std::string>& keys, const std::string& text,
                    const Path& file);

void write_part(const Path& file, const WorkUnit& unit, const std::vector<std::string>& keys, const PartContent& part);
/// BadInput, as parse_note(), and when it is not whole.
PartContent read_part(const Path& file, const WorkUnit& unit, const std::vector<std::string>& keys);

}  // namespace mcpp

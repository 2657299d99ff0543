// What became of the units of a preprocessing that several processes share, or that was interrupted: a folder of parts.
// A part is the .bin and .idx of each key and a note, written last, that says what it is a part of.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/parts/work_units.h"
#include "data/prepare/preprocess.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// One key of a part.
struct PartOfKey {
  DatasetInfo info;        ///< of its tokens
  bool continues = false;  ///< its first document belongs to one that began in the part before
  bool head_ends = false;  ///< and ends it
  bool is_open = false;    ///< its last document goes on in the part behind; unless it is that first one
  i64 head_tokens = 0;     ///< of the first document, where it continues
  i64 open_tokens = 0;     ///< of the last, where it is open
  i64 empty_documents = 0;
};

struct PartNote {
  std::vector<PartOfKey> keys;
  i64 malformed_lines = 0;
};

class PartsFolder {
 public:
  /// That of `options`, beside the datasets which it is to become.
  PartsFolder(const PreprocessOptions& options, std::vector<std::string> keys);

  const Path& path() const { return path_; }
  const std::vector<std::string>& keys() const { return keys_; }
  bool exists() const;
  /// Makes it, or goes on with the parts that an interrupted run left there. BadInput when they were made with another
  /// tokenizer or by other rules.
  void open(const Tokenizer& tokenizer) const;
  /// With all that is in it, so that a run which is killed meanwhile does not find half of it.
  void remove() const;
  /// What an earlier remove() could not finish.
  void remove_leftovers() const;

  Path prefix(const WorkUnit& unit, const std::string& key) const;
  /// The file to which the tokens of all parts are joined.
  Path joined_path(const std::string& key) const { return path_ / (key + ".bin"); }
  /// Of a part that is there; none for one that is not, or not whole.
  std::optional<PartNote> read_note(const WorkUnit& unit) const;
  void write_note(const WorkUnit& unit, const PartNote& note) const;
  /// A note as other processes are told of it.
  std::string note_text(const WorkUnit& unit, const PartNote& note) const;
  PartNote parse_note(const WorkUnit& unit, const std::string& text) const;

 private:
  std::string description(const Tokenizer& tokenizer) const;
  void check_part(const WorkUnit& unit, const PartNote& note) const;
  Path note_path(const WorkUnit& unit) const;

  const PreprocessOptions& options_;
  std::vector<std::string> keys_;
  Path path_;
};

/// Tokenises one unit on so many threads. What it returns makes that the unit's part, durably, and gives its note: that
/// waits for the disk, and may be done in another thread. `folder` and `unit` outlive it. `progress`: bytes of the unit
/// that are done. Errors as of run_preprocess().
std::function<PartNote()> make_part(const PartsFolder& folder, const WorkUnit& unit, const PreprocessOptions& options,
                                    const Tokenizer& tokenizer, i64 workers,
                                    const std::function<void(i64 bytes)>& progress);

}  // namespace mcpp

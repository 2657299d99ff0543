// Working folder of a preprocessing run that is shared by several processes or was interrupted. For each key it holds
// the joined file, into which each unit's tokens are written at their place; for each finished unit it holds a part
// file, written last.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/preprocess/distributed/part.h"
#include "data/preprocess/preprocess.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

class PartsFolder {
 public:
  /// Names the folder for `options`; it is next to the output datasets.
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
  /// Removes what an earlier, interrupted remove() left.
  void remove_leftovers() const;

  /// Returns the path of the file into which the tokens of all parts are joined.
  Path shared_output_path(const std::string& key) const { return path_ / (key + ".bin"); }
  /// Returns the path for tokens of a unit that have no place yet and do not fit in memory.
  Path tokens_path(const WorkUnit& unit, const std::string& key) const;
  Path part_path(const WorkUnit& unit) const;
  /// Returns the note of each unit whose part is present and complete. Removes everything else, such as parts of an
  /// input file that has changed, since different units will occupy their places.
  std::vector<std::optional<PartMetadata>> retain_parts(const std::vector<WorkUnit>& units) const;
  /// Returns the note of a unit, or std::nullopt if its part is missing or incomplete.
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

}  // namespace mcpp

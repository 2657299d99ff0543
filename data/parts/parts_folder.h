// The folder of a preprocessing that several processes share, or that was interrupted. For each key it has the file of
// all tokens, in which what was made lies at its place, and for each unit that is done a file that says so, written
// last.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/parts/part.h"
#include "data/prepare/preprocess.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

class PartsFolder {
 public:
  /// That of `options`, beside the datasets which it is to become.
  PartsFolder(const PreprocessOptions& options, std::vector<std::string> keys);

  const Path& path() const { return path_; }
  const PreprocessOptions& options() const { return options_; }
  const std::vector<std::string>& keys() const { return keys_; }
  bool exists() const;
  /// Makes it, or goes on with what an interrupted run left there. BadInput when that was made with another tokenizer,
  /// by other rules, or by a program that did it in another way.
  void open(const Tokenizer& tokenizer) const;
  /// With all that is in it, so that a run which is killed meanwhile does not find half of it.
  void remove() const;
  /// What an earlier remove() could not finish.
  void remove_leftovers() const;

  /// The file to which the tokens of all parts are joined.
  Path joined_path(const std::string& key) const { return path_ / (key + ".bin"); }
  /// Where the tokens of a unit wait that have no place yet, and find no room in memory.
  Path tokens_path(const WorkUnit& unit, const std::string& key) const;
  Path part_path(const WorkUnit& unit) const;
  /// Of each unit whose part is there, and whole. Takes away everything else, such as parts of a file that was changed
  /// since: others will lie where they lay.
  std::vector<std::optional<PartNote>> keep_parts_of(const std::vector<WorkUnit>& units) const;
  /// Of a unit whose part is there; none for one of which it is not, or not whole.
  std::optional<PartNote> read_note(const WorkUnit& unit) const;
  PartContent read_part(const WorkUnit& unit) const;
  void write_part(const WorkUnit& unit, const PartContent& part) const;
  void remove_tokens(const WorkUnit& unit) const;

 private:
  std::string description(const Tokenizer& tokenizer) const;
  void check_tokens(const WorkUnit& unit, const PartNote& note) const;

  const PreprocessOptions& options_;
  std::vector<std::string> keys_;
  Path path_;
};

}  // namespace mcpp

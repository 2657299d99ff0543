// Index arrays kept on disk between runs, so that a start reads them instead of shuffling again.
//
// A file's name is a checksum over everything that defines its content, the text of which is stored inside and
// compared. Files are written atomically and verified in full (size and checksum) when opened; a damaged one is
// rebuilt. Several runs may build and write the same file at once.
//
// Of the ranks of a run one looks for the file and, where there is none, builds it: the first of all, and then, where
// its folder is not theirs, the first of each node (IndexRanks). Nothing is assumed about who sees which file system.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "data/read/index/index_ranks.h"

namespace mcpp {

/// A few arrays of 32-bit numbers, owned or mapped from a cache file. Move-only.
class IndexArrays {
 public:
  IndexArrays() = default;
  explicit IndexArrays(std::vector<std::vector<u32>> arrays) : owned_(std::move(arrays)) {}
  /// Whether to compare a cache file with its checksum, for which all of it is read.
  enum class Verify : u8 { All, Header };
  /// The arrays of a cache file. When it cannot serve, none, and `reason` says why ("" when there is no file).
  static std::optional<IndexArrays> open(const Path& path, std::string_view description, Verify verify,
                                         std::string& reason);

  std::span<const u32> operator[](std::size_t i) const { return mapped_.empty() ? std::span(owned_[i]) : mapped_[i]; }
  bool is_mapped() const { return !mapped_.empty(); }

 private:
  std::vector<std::vector<u32>> owned_;
  MappedFile file_;
  std::vector<std::span<const u32>> mapped_;
};

/// BadInput, naming `what` it is the index of, when so many numbers, in as many copies, would take more than a quarter
/// of `memory` (bytes that this machine has): while an index is stored it is there twice, and the training needs memory
/// too.
void check_index_fits(const std::string& what, i64 numbers, i64 copies, i64 memory = physical_memory());

/// <folder>/<kind>-<checksum of description>.index
Path index_cache_path(const Path& folder, std::string_view kind, std::string_view description);

using IndexBuilder = std::function<std::vector<std::vector<u32>>(const IndexBuild&)>;

/// The arrays for `description`, from the cache in `folder` or from `build` (and then stored there). A folder that
/// cannot be written costs a warning and leaves the arrays in memory, of each rank its own. Called by all of `ranks`.
IndexArrays cached_index(const Path& folder, std::string_view kind, const std::string& description,
                         const IndexBuilder& build, const IndexRanks& ranks, const Log& log);

}  // namespace mcpp

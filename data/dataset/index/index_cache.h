// Cache of index arrays on disk, so that a restart does not shuffle again.
//
// The file name is a checksum of a description of everything that determines the content; the description itself is
// stored in the file and compared. Files are written atomically and verified in full (size and checksum) when opened; a
// damaged one is rebuilt. Several runs may build and write the same file concurrently.
//
// Only one rank of a run looks for the file and builds it if necessary: rank 0 and, on nodes that do not see its
// folder, the first rank of the node (IndexRanks). No assumption is made about which ranks share a file system.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"

namespace mcpp {

// Ranks that read the same samples, as seen by the index builder.

/// Options for building an index.
struct IndexBuildOptions {
  int copies = 1;             ///< number of ranks on this node that concurrently build separate copies
  std::stop_token stop = {};  ///< requests cancellation

  /// Throws Preempted if building `what` was canceled. Call it often during a long build.
  void throw_if_canceled(const char* what) const {
    if (stop.stop_requested()) fail(ExitCode::Preempted, "a signal stopped the run while it was building ", what);
  }
};

class IndexRanks {
 public:
  enum class RankScope : u8 { First, FirstOfNode, All };
  virtual ~IndexRanks() = default;
  /// Runs f, which may take hours, on the given ranks while the other ranks wait. Returns, once all calls have
  /// finished, the result of f on the first rank of this node, or false if f did not run there. An exception on one
  /// rank is thrown on all. Collective.
  virtual bool run(RankScope scope, const std::function<bool(const IndexBuildOptions&)>& f) const = 0;
};

/// Single process that builds every index itself.
class SingleIndexRank final : public IndexRanks {
 public:
  bool run(RankScope, const std::function<bool(const IndexBuildOptions&)>& f) const override { return f({}); }
};

/// Arrays of 32-bit integers, owned or mapped from a cache file. Move-only.
class IndexArrays {
 public:
  IndexArrays() = default;
  explicit IndexArrays(std::vector<std::vector<u32>> arrays) : owned_(std::move(arrays)) {}
  /// Extent of verification: All reads the entire file to compare its checksum.
  enum class Verify : u8 { All, Header };
  /// Opens a cache file. Returns std::nullopt if it cannot be used and sets `reason` ("" if there is no file).
  static std::optional<IndexArrays> open(const Path& path, std::string_view description, Verify verify,
                                         std::string& reason);

  std::span<const u32> operator[](std::size_t i) const { return mapped_.empty() ? std::span(owned_[i]) : mapped_[i]; }
  bool is_mapped() const { return !mapped_.empty(); }

 private:
  std::vector<std::vector<u32>> owned_;
  MappedFile file_;
  std::vector<std::span<const u32>> mapped_;
};

/// Throws BadInput, naming `what`, if `copies` of an index of `num_elements` elements exceed a quarter of `memory`
/// (bytes of this host). While an index is being stored, memory holds it twice, and training needs memory as well.
void check_index_fits(const std::string& what, i64 num_elements, i64 copies, i64 memory = physical_memory());

/// Returns <folder>/<kind>-<checksum of description>.index.
Path index_cache_path(const Path& folder, std::string_view kind, std::string_view description);

using IndexBuilder = std::function<std::vector<std::vector<u32>>(const IndexBuildOptions&)>;

/// Loads the arrays for `description` from the cache in `folder`, or builds and stores them. Collective over `ranks`.
/// If the folder is not writable, logs a warning and keeps a copy in the memory of each rank.
IndexArrays cached_index(const Path& folder, std::string_view kind, const std::string& description,
                         const IndexBuilder& build, const IndexRanks& ranks, const Log& log);

}  // namespace mcpp

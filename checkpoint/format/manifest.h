// manifest.json: the content of a checkpoint. It is written last, together with a file with its checksum, and treated
// as untrusted input when read.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/types.h"
#include "checkpoint/format/shard.h"

namespace mcpp {

/// Progress and identity of a run: everything in a checkpoint except the tensors.
struct RunState {
  i64 iteration = 0;         ///< completed optimizer steps
  i64 consumed_samples = 0;  ///< determines the next samples and the learning rate
  i64 consumed_tokens = 0;
  i64 skipped_iterations = 0;  ///< steps skipped because the gradient was not finite
  std::string config = {};     ///< the resolved configuration, in TOML
  std::string model_fingerprint = {};
  std::string tokenizer_checksum = {};
  std::string program_version = {};
  std::map<std::string, std::string> extra = {};  ///< other state by name

  /// Calls visit(name, member) for every member except `extra`.
  template <class Self, class Visitor>
  static void fields(Self& self, Visitor&& visit) {
    visit("iteration", self.iteration);
    visit("consumed_samples", self.consumed_samples);
    visit("consumed_tokens", self.consumed_tokens);
    visit("skipped_iterations", self.skipped_iterations);
    visit("config", self.config);
    visit("model_fingerprint", self.model_fingerprint);
    visit("tokenizer_checksum", self.tokenizer_checksum);
    visit("program_version", self.program_version);
  }

  bool operator==(const RunState&) const = default;
};

struct FileEntry {
  std::string name;  ///< relative to the checkpoint's directory
  i64 bytes = 0;
  std::string checksum;  ///< XXH3-128 of the entire file, in hexadecimal
};

struct ShardEntry : Region {
  i64 file = 0;         ///< index into Manifest::files
  std::string dataset;  ///< path of the dataset in that HDF5 file
  std::string checksum;
};

struct TensorEntry {
  std::string name;
  DType dtype = DType::F32;
  Shape global;
  std::vector<ShardEntry> shards;  ///< disjoint; together they cover the tensor, unless the coverage is Part
};

/// Elements in a checkpoint: all elements of its tensors, or those of one rank.
enum class Coverage : u8 { Full, Part };
std::string_view name_of(Coverage coverage);

struct Manifest {
  std::string saved_at = {};  ///< UTC, ISO 8601; informational
  Coverage coverage = Coverage::Full;
  RunState state = {};
  std::vector<FileEntry> files = {};
  std::vector<TensorEntry> tensors = {};  ///< sorted by name

  i64 bytes() const;                                     ///< total size of the files
  const TensorEntry* find(std::string_view name) const;  ///< nullptr if absent
};

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kManifestChecksumName = "manifest.json.xxh3";

/// Throws BadInput, naming `source` and the tensor, unless the shards of every tensor are disjoint, complete (for
/// Coverage::Full) and refer to files in the manifest.
void validate(const Manifest& manifest, const std::string& source);

std::string to_json(const Manifest& manifest);
/// Throws BadInput for malformed manifests; messages refer to it as `source`. Call validate() next: until then the
/// entries may be inconsistent.
Manifest parse_manifest(std::string_view text, const std::string& source);

/// Reads manifest.json of a checkpoint directory, verifies its checksum and validates it.
Manifest read_manifest(const Path& directory);
/// Writes the manifest and its checksum durably. In an object store, replaces those of an older checkpoint atomically.
void write_manifest(const Path& directory, const Manifest& manifest);

// Damaged checkpoint files, as reported on all ranks.

/// Error for a file whose contents differ from what was saved. A different checkpoint may work. Errors that would
/// affect any checkpoint, such as too many open files, have a different type.
class DamagedFile : public Error {
 public:
  explicit DamagedFile(const std::string& what) : Error(ExitCode::BadInput, what) {}
};

struct Damage {
  int rank = 0;  ///< rank that found it
  std::string text;
};

/// Returns the first non-empty report; "" is the report of a rank that found no damage.
inline std::optional<Damage> first_damage(std::span<const std::string> reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].empty()) return Damage{static_cast<int>(rank), reports[rank]};
  }
  return std::nullopt;
}

}  // namespace mcpp

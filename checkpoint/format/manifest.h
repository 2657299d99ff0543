// manifest.json: the content of a checkpoint. It is written last, together with a file with its checksum, and treated
// as untrusted input when read.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/run_state.h"
#include "checkpoint/format/shard.h"

namespace mcpp {

struct FileEntry {
  std::string name;  ///< relative to the checkpoint's directory
  i64 bytes = 0;
  std::string checksum;  ///< XXH3-128 of the whole file
};

struct ShardEntry : Region {
  i64 file = 0;         ///< index into Manifest::files
  std::string dataset;  ///< path in that HDF5 file
  std::string checksum;
};

struct TensorEntry {
  std::string name;
  DType dtype = DType::F32;
  Shape global;
  std::vector<ShardEntry> shards;  ///< disjoint; together they cover the tensor, unless the coverage is Part
};

/// Elements in a checkpoint: all elements of its tensors, or those of one rank.
enum class Coverage : u8 { Whole, Part };
std::string_view name_of(Coverage coverage);

struct Manifest {
  std::string saved_at = {};  ///< UTC, ISO 8601; informational
  Coverage coverage = Coverage::Whole;
  RunState state = {};
  std::vector<FileEntry> files = {};
  std::vector<TensorEntry> tensors = {};  ///< sorted by name

  i64 bytes() const;                                     ///< of all files
  const TensorEntry* find(std::string_view name) const;  ///< nullptr if absent
};

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kManifestChecksumName = "manifest.json.xxh3";

/// Throws BadInput, naming `source` and the tensor, unless the shards of every tensor are disjoint, complete (for
/// Coverage::Whole) and refer to files in the manifest.
void validate(const Manifest& manifest, const std::string& source);

std::string to_json(const Manifest& manifest);
/// Throws BadInput for malformed manifests; messages refer to it as `source`. Call validate() next: until then the
/// entries may be inconsistent.
Manifest parse_manifest(std::string_view text, const std::string& source);

/// Reads manifest.json of a checkpoint directory, verifies its checksum and validates it.
Manifest read_manifest(const Path& directory);
/// Writes the manifest and its checksum durably.
void write_manifest(const Path& directory, const Manifest& manifest);

}  // namespace mcpp

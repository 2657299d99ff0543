// manifest.json: what a checkpoint consists of. It is written last, with its own checksum beside it, and read as a
// file that anybody may have changed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/run_state.h"
#include "checkpoint/format/shard.h"

namespace mcpp {

struct FileEntry {
  std::string name;  ///< inside the checkpoint's directory
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
  std::vector<ShardEntry> shards;  ///< disjoint; together the whole tensor, unless the manifest covers a part
};

/// Whether a checkpoint holds every element of its tensors, or what one rank had of them.
enum class Coverage : u8 { Whole, Part };
std::string_view name_of(Coverage coverage);

struct Manifest {
  std::string saved_at = {};  ///< UTC, ISO 8601; information only
  Coverage coverage = Coverage::Whole;
  RunState state = {};
  std::vector<FileEntry> files = {};
  std::vector<TensorEntry> tensors = {};  ///< sorted by name

  i64 bytes() const;                                     ///< of all files
  const TensorEntry* find(std::string_view name) const;  ///< nullptr when there is none
};

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kManifestChecksumName = "manifest.json.xxh3";

/// Throws BadInput, naming `source` and the tensor, unless the shards of every tensor are disjoint, complete (where
/// all is covered) and refer to files that exist in the manifest.
void validate(const Manifest& manifest, const std::string& source);

std::string to_json(const Manifest& manifest);
/// Throws BadInput for anything but a well-formed manifest; `source` is how messages call it. validate() comes next:
/// before that the numbers may contradict one another.
Manifest parse_manifest(std::string_view text, const std::string& source);

/// manifest.json of a checkpoint directory, checked against its checksum and validated.
Manifest read_manifest(const Path& directory);
/// Writes both files, durably.
void write_manifest(const Path& directory, const Manifest& manifest);

}  // namespace mcpp

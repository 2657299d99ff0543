// Loading: any box, or flat range of one, of any tensor in a checkpoint, whatever boxes it was saved in.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "checkpoint/hdf5.h"
#include "checkpoint/manifest.h"

namespace mcpp {

/// Whether files are compared with their checksums when first opened. Verified is for checkpoints that newest_good()
/// just found.
enum class Trust : u8 { Verify, Verified };
/// What to do when the stored element type is not the wanted one: refuse, or convert between floating-point types.
enum class Conversion : u8 { Refuse, Convert };

class CheckpointReader {
 public:
  /// `directory` is a checkpoint, such as <folder>/iter_0000100. Throws BadInput when its manifest is not sound.
  explicit CheckpointReader(Path directory, Trust trust = Trust::Verify);
  ~CheckpointReader();

  const Path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const RunState& state() const { return manifest_.state; }
  bool has(std::string_view name) const { return manifest_.find(name) != nullptr; }
  /// Whether every element that target's box and range name is there. Always so in a sound checkpoint that covers all.
  bool holds(const ShardSpec& target) const;

  /// Fills target.data, on any device, with the elements that target's box and range name. Throws BadInput when the
  /// checkpoint has no such tensor, when its global shape or type differs, and when a file is damaged. Not for
  /// several threads at once. Needs no memory but, for another device than the host, a copy of target.data.
  void read(NamedShard& target, Conversion conversion = Conversion::Refuse);
  /// A whole tensor, in its stored type.
  Tensor read_whole(std::string_view name, Device& device);

 private:
  struct OpenFile;
  OpenFile& open(i64 file);
  void read_on_host(NamedShard& target, Conversion conversion);

  Path directory_;
  Trust trust_;
  Manifest manifest_;
  CpuDevice host_;
  std::vector<std::unique_ptr<OpenFile>> files_;  // as in the manifest; opened when first needed
};

/// The manifest's tensor of this name. Throws BadInput, with the nearest name, when there is none.
const TensorEntry& tensor_entry(const Manifest& manifest, std::string_view name, const Path& directory);

}  // namespace mcpp

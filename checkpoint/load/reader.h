// Reader of checkpoints. It loads any box of a tensor, or any flat range of a box, independent of the boxes in which
// the tensor was saved. All data are verified in the same pass over the files.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "checkpoint/format/block_io.h"
#include "checkpoint/format/manifest.h"
#include "comm/communicator.h"
#include "nn/tensor_region.h"
#include "tensor/dtype.h"

namespace mcpp {

// Copying of a stored shard's elements to one target during streaming.

/// Element types of source and target.
struct Types {
  DType stored, wanted;
};

/// Converts elements of one type to another; addresses may be unaligned.
using Converter = void (*)(const std::byte* from, std::byte* to, i64 count);

class Destination {
 public:
  /// `to` holds the elements of `target`, in the wanted type.
  Destination(const Region& shard, const Region& target, std::byte* to, Types types);

  /// Returns how many of the shard's elements the target needs.
  i64 count() const { return count_; }
  /// Returns true if the target needs any of the shard's elements [begin, end). Must be called with ascending ranges,
  /// once each.
  bool needs(i64 begin, i64 end);
  /// Returns the destination address if the target needs the complete range contiguously and unconverted; otherwise
  /// nullptr.
  std::byte* direct_address(i64 begin, i64 end) const;
  /// Copies and converts the needed elements of the range; `values` may be unaligned.
  void copy_from(i64 begin, i64 end, const std::byte* values) const;

 private:
  struct Run {
    i64 from, to, count;
    i64 end() const { return from + count; }
  };

  std::byte* to_;
  Types types_;
  Converter converter_;    // nullptr: no conversion
  std::vector<Run> runs_;  // ascending
  std::size_t next_ = 0;   // first run that does not end before the last range
  i64 count_ = 0;
};

/// Handling of a stored element type that differs from the requested type: refuse, or convert between floating-point
/// types.
enum class Conversion : u8 { Refuse, Convert };

/// Groups of ranks that load a checkpoint together.
struct LoadingRanks {
  Communicator& world;
  Communicator& node;  ///< ranks on this rank's node

  /// All ranks are on one node.
  LoadingRanks(Communicator& all) : world(all), node(all) {}
  LoadingRanks(Communicator& all, Communicator& of_node) : world(all), node(of_node) {}
};

/// Reader of a checkpoint. Files in an object store are copied to the cache of the node when they are first needed. Not
/// thread-safe.
class CheckpointReader {
 public:
  /// Opens a checkpoint directory such as <folder>/iter_0000100. Throws BadInput if its manifest is damaged.
  explicit CheckpointReader(Path directory);
  ~CheckpointReader();

  const Path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const RunState& state() const { return manifest_.state; }
  bool has(std::string_view name) const { return manifest_.find(name) != nullptr; }
  /// Returns true if every element in target's box and range is stored. Always true for an intact checkpoint with
  /// Coverage::Full.
  bool has_all_elements(const ShardSpec& target) const;

  /// Callback for bytes read by this rank. `all`: total bytes of the current load(), 0 outside of one.
  using ReadListener = std::function<void(i64 bytes, i64 all)>;
  void set_listener(ReadListener listener) { listener_ = std::move(listener); }

  /// Fills target.data, on any device, with the elements in target's box and range. A stored shard is verified with its
  /// checksum when it is first read. Throws BadInput if the tensor is absent, if its global shape or type differs, or
  /// if a file is damaged.
  void read(NamedShard& target, Conversion conversion = Conversion::Refuse);
  /// Returns an unsharded tensor, in its stored type.
  Tensor read_full_tensor(std::string_view name, Device& device);

  /// Fills the targets of all ranks, reading each file front to back. Collective. Every rank passes a reader of the
  /// same checkpoint or, with Coverage::Part, of its own.
  ///  - Each stored shard is checksummed once: on every node with ranks that need all of it, by one of these; if all
  ///    ranks of the world need only parts of it, by one rank of the world. Other ranks assume that they read the same
  ///    file.
  ///  - Uses no extra memory, except that targets on other devices are staged on the host, one tensor at a time.
  ///  - Returns std::nullopt on success. On corruption all ranks return the same Damage, the contents of the targets
  ///    are unspecified and the reader must not be used again. Other errors are thrown on all ranks.
  std::optional<Damage> load(std::span<NamedShard> targets, const LoadingRanks& ranks,
                             Conversion conversion = Conversion::Refuse);

 private:
  struct OpenFile;
  /// Targets of one tensor, which is given by its index in the manifest.
  struct Job {
    std::size_t tensor;
    std::vector<NamedShard*> targets;
  };
  using Jobs = std::map<std::size_t, Job>;
  /// Verification state of a stored shard. WhenRead: not verified yet. Now: verified by this rank in the current load.
  /// Done: verified by this rank or another one.
  enum class Check : u8 { WhenRead, Now, Done };

  OpenFile& open(i64 file);
  void remove_local_copies();
  std::size_t index_of(std::string_view name) const;
  i64 offset_of(const TensorEntry& tensor, const ShardEntry& shard);
  void check(const NamedShard& target, Conversion conversion) const;
  void assign_verification(Jobs& jobs, const LoadingRanks& ranks);
  std::vector<const Job*> sort_by_file_offset(const Jobs& jobs);
  /// Returns the total size of the shards of which this rank reads any part, in bytes.
  i64 bytes_to_read(const Jobs& jobs) const;
  /// Returns true if a shard of `size` bytes at `offset` of its file is read in blocks.
  bool is_read_in_blocks(Check check, i64 offset, i64 size) const;
  /// Declares the reads of a job to its files. `unshared_mode` applies to shards that no other rank of the node needs.
  void declare(const Job& job, ReadMode unshared_mode);
  void fill(const Job& job);
  void read_shard(const TensorEntry& tensor, const ShardEntry& shard, std::span<Destination> destinations, Check check);
  /// Reads to `destination`, or to chunk_ if it is nullptr.
  std::span<const std::byte> read_chunk(const InputFile& file, i64 offset, i64 bytes, std::byte* destination);

  Path directory_;
  Manifest manifest_;
  CpuDevice host_;
  std::vector<std::unique_ptr<OpenFile>> files_;  // open files, in the order of the manifest; opened on first use
  std::vector<std::size_t> first_shard_;          // index of each tensor's first shard among all shards
  std::vector<Check> checks_;                     // indexed by shard
  std::vector<bool> is_needed_by_others_;  // indexed by shard: another rank of the node needs it in the current load
  std::vector<i64> offsets_;               // indexed by shard: cached byte offset in the shard's file
  std::vector<std::byte> chunk_;           // buffer for a part of a shard
  ReadListener listener_;
  i64 load_bytes_ = 0;
  std::unique_ptr<BlockReader> blocks_;  // shards verified by this rank in the current load
};

/// Returns the manifest's tensor of this name. Throws BadInput, suggesting the nearest name, if it is absent.
const TensorEntry& tensor_entry(const Manifest& manifest, std::string_view name, const Path& directory);

// Progress display for reading a checkpoint.

/// Returns a listener that shows the progress of a reader on the terminal, under the name `what`.
CheckpointReader::ReadListener make_progress_listener(const Log& log, std::string what);

}  // namespace mcpp

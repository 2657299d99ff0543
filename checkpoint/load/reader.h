// Loading: any box, or flat range of one, of any tensor in a checkpoint, whatever boxes it was saved in. Every number
// is verified on the way, in the same pass over the files.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/format/block_reader.h"
#include "checkpoint/format/damage.h"
#include "checkpoint/format/input_file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/load/destination.h"
#include "comm/communicator.h"

namespace mcpp {

/// What to do when the stored element type is not the wanted one: refuse, or convert between floating-point types.
enum class Conversion : u8 { Refuse, Convert };

/// Ranks that load a checkpoint together.
struct LoadingRanks {
  Communicator& world;
  Communicator& node;  ///< those of this rank's machine

  /// All on one machine.
  LoadingRanks(Communicator& all) : world(all), node(all) {}
  LoadingRanks(Communicator& all, Communicator& of_machine) : world(all), node(of_machine) {}
};

/// Not for several threads at once.
class CheckpointReader {
 public:
  /// `directory` is a checkpoint, such as <folder>/iter_0000100. Throws BadInput when its manifest is not sound.
  explicit CheckpointReader(Path directory);
  ~CheckpointReader();

  const Path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const RunState& state() const { return manifest_.state; }
  bool has(std::string_view name) const { return manifest_.find(name) != nullptr; }
  /// Whether every element that target's box and range name is there. Always so in a sound checkpoint that covers all.
  bool holds(const ShardSpec& target) const;

  /// Hears of the bytes that this rank reads; `all` is how many there will be in a load(), 0 outside of one.
  using ReadListener = std::function<void(i64 bytes, i64 all)>;
  void set_listener(ReadListener listener) { listener_ = std::move(listener); }

  /// Fills target.data, on any device, with the elements that target's box and range name. Throws BadInput when the
  /// checkpoint has no such tensor, when its global shape or type differs, and when a file is damaged. A stored shard
  /// that is read for the first time is read as a whole and compared with its checksum.
  void read(NamedShard& target, Conversion conversion = Conversion::Refuse);
  /// A whole tensor, in its stored type.
  Tensor read_whole(std::string_view name, Device& device);

  /// The same for all targets of all ranks, in the order of the files. On each node that wants all of a stored shard
  /// one rank, of those that do, compares it with its checksum, so that all share that work; where every rank of the
  /// world wants parts only, one of the world does, in turn, for nobody else needs to read all of it. Others trust that
  /// they read the same file. Needs no memory but, for another device than the host, copies of the targets that lie in
  /// one tensor. When a file is damaged the targets hold anything, this reader is of no more use, and all ranks get the
  /// same answer; std::nullopt means that all is well. Other errors are thrown on all ranks. Called by all ranks, of
  /// which each has a reader of the same checkpoint or, with Coverage::Part, of its own.
  std::optional<Damage> load(std::span<NamedShard> targets, const LoadingRanks& ranks,
                             Conversion conversion = Conversion::Refuse);

 private:
  struct OpenFile;
  /// All targets of one tensor, by its place in the manifest.
  struct Job {
    std::size_t tensor;
    std::vector<NamedShard*> targets;
  };
  using Jobs = std::map<std::size_t, Job>;
  /// When a stored shard is compared with its checksum. Now: in the load that goes on, by this rank. Done: it was, here
  /// or by another rank.
  enum class Check : u8 { WhenRead, Now, Done };

  OpenFile& open(i64 file);
  std::size_t index_of(std::string_view name) const;
  i64 offset_of(const TensorEntry& tensor, const ShardEntry& shard);
  void check(const NamedShard& target, Conversion conversion) const;
  void share_checks(Jobs& jobs, const LoadingRanks& ranks);
  std::vector<const Job*> in_order_of_files(const Jobs& jobs);
  /// Of the shards that this rank reads something of.
  i64 bytes_to_read(const Jobs& jobs) const;
  /// A shard whose numbers, of `size` bytes, begin at `offset` of their file.
  bool comes_in_blocks(Check check, i64 offset, i64 size) const;
  /// alone: the way of what no other rank of the node wants.
  void expect(const Job& job, ReadWay alone);
  void fill(const Job& job);
  void read_shard(const TensorEntry& tensor, const ShardEntry& shard, std::span<Destination> destinations, Check check);
  /// To `place`, or where it is null to piece_.
  std::span<const std::byte> read_piece(const InputFile& file, i64 offset, i64 bytes, std::byte* place);

  Path directory_;
  Manifest manifest_;
  CpuDevice host_;
  std::vector<std::unique_ptr<OpenFile>> files_;  // as in the manifest; opened when first needed
  std::vector<std::size_t> first_shard_;          // of each tensor, all shards being counted one after another
  std::vector<Check> checks_;                     // by shard
  std::vector<bool> wanted_by_others_;            // by shard: of the same node, in the load that goes on
  std::vector<i64> offsets_;                      // by shard: where its numbers begin in their file, once asked
  std::vector<std::byte> piece_;                  // of a shard
  ReadListener listener_;
  i64 bytes_of_load_ = 0;
  std::unique_ptr<BlockReader> blocks_;  // of the shards that are to be verified now, while a load goes on
};

/// The manifest's tensor of this name. Throws BadInput, with the nearest name, when there is none.
const TensorEntry& tensor_entry(const Manifest& manifest, std::string_view name, const Path& directory);

}  // namespace mcpp

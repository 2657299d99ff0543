// Source of shards that are in memory.
#pragma once
#include <span>
#include <vector>

#include "checkpoint/format/shard.h"
#include "checkpoint/save/writer.h"

namespace mcpp::test {

class ShardList final : public ShardSource {
 public:
  explicit ShardList(std::span<const NamedShard> shards) : specs_(specs_of(shards)) {
    for (const NamedShard& shard : shards) data_.push_back(shard.data);
  }
  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override { return data_[index]; }

 private:
  std::vector<ShardSpec> specs_;
  std::vector<Tensor> data_;
};

/// Saves these shards with mcpp::save_checkpoint().
inline Path save_shards(const Path& folder, const RunState& state, std::span<const NamedShard> shards,
                        Communicator& world, const Log& log, const Retention& retention = {},
                        const FileSystem& files = FileSystem()) {
  ShardList source(shards);
  return save_checkpoint(folder, state, source, world, log, retention, files);
}

}  // namespace mcpp::test

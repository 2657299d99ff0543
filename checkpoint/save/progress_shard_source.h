// Progress display for writing shards.
#pragma once
#include "base/program/progress.h"
#include "checkpoint/format/shard.h"

namespace mcpp {

/// Forwards the shards of `source` and shows the progress on the terminal.
class ProgressShardSource final : public ShardSource {
 public:
  ProgressShardSource(ShardSource& source, StoredRef<Log> log, std::string what);
  std::span<const ShardSpec> shards() const override { return source_.shards(); }
  Tensor data(std::size_t index) override;

 private:
  ShardSource& source_;
  Progress progress_;
  double done_ = 0;  // bytes
};

}  // namespace mcpp

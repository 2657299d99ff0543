// Progress display for writing shards.
#pragma once
#include "base/program/progress.h"
#include "checkpoint/format/shard.h"

namespace mcpp {

/// Forwards the shards of `source` and shows the progress on the terminal.
class ShownSource final : public ShardSource {
 public:
  ShownSource(ShardSource& source, KeptRef<Log> log, std::string what);
  std::span<const ShardSpec> shards() const override { return source_.shards(); }
  Tensor data(std::size_t index) override;

 private:
  ShardSource& source_;
  Progress progress_;
  double done_ = 0;  // bytes
};

}  // namespace mcpp

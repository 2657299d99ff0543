// Shards on their way to a file, with what a terminal shows of that.
#pragma once
#include "base/program/progress.h"
#include "checkpoint/format/shard.h"

namespace mcpp {

/// The shards of `source`, which outlives this.
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

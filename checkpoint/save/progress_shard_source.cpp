#include "checkpoint/save/progress_shard_source.h"

#include <utility>

namespace mcpp {
namespace {

double bytes_of(const ShardSpec& shard) {
  return static_cast<double>(shard.numel() * size_of(shard.dtype));
}

double bytes_of(std::span<const ShardSpec> shards) {
  double sum = 0;
  for (const ShardSpec& shard : shards) sum += bytes_of(shard);
  return sum;
}

}  // namespace

ProgressShardSource::ProgressShardSource(ShardSource& source, StoredRef<Log> log, std::string what)
    : source_(source), progress_(log, std::move(what), {.total = bytes_of(source.shards())}) {}

Tensor ProgressShardSource::data(std::size_t index) {
  progress_.update(done_);
  done_ += bytes_of(shards()[index]);
  return source_.data(index);
}

}  // namespace mcpp

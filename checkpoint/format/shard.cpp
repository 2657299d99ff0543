#include "checkpoint/format/shard.h"

namespace mcpp {

std::string model_tensor(std::string_view param_name) {
  return str("model/", param_name);
}

std::string optimizer_tensor(std::string_view state, std::string_view param_name) {
  return str("optimizer/", state, "/", param_name);
}

ShardList::ShardList(std::span<const NamedShard> shards) {
  for (const NamedShard& shard : shards) {
    MCPP_CHECK(shard.data.defined() && shard.data.numel() == shard.numel(), shard.name, ": the shard has ",
               shard.numel(), " elements, its tensor has shape ", shard.data.shape());
    ShardSpec spec;
    static_cast<Region&>(spec) = shard;
    spec.name = shard.name;
    spec.dtype = shard.data.dtype();
    specs_.push_back(std::move(spec));
    data_.push_back(shard.data);
  }
}

}  // namespace mcpp

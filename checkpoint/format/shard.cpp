#include "checkpoint/format/shard.h"

#include "tensor/transfer.h"

namespace mcpp {
namespace {

constexpr std::string_view kModel = "model/";

}  // namespace

std::string model_tensor(std::string_view param_name) {
  return str(kModel, param_name);
}

bool is_model_tensor(std::string_view name) {
  return name.starts_with(kModel);
}

std::string optimizer_tensor(std::string_view state, std::string_view param_name) {
  return str("optimizer/", state, "/", param_name);
}

void NamedShard::read(Tensor& to) const {
  stored.defined() ? stored.read(to) : read_bytes(data, to.raw());
}

void NamedShard::write(const Tensor& from) {
  stored.defined() ? stored.write(from) : write_bytes(from.raw(), data);
}

std::vector<ShardSpec> specs_of(std::span<const NamedShard> shards) {
  std::vector<ShardSpec> specs;
  for (const NamedShard& shard : shards) {
    MCPP_CHECK(shard.stored.defined() || shard.data.defined(), shard.name, " has no elements");
    const i64 values = shard.stored.defined() ? shard.stored.numel() : shard.data.numel();
    MCPP_CHECK(values == shard.numel(), shard.name, ": the shard has ", shard.numel(), " elements, but data for ",
               values);
    ShardSpec spec;
    static_cast<Region&>(spec) = shard;
    spec.name = shard.name;
    spec.dtype = shard.dtype();
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace mcpp

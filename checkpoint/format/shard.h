// Content of a checkpoint: named shards of global tensors. Names begin with their kind:
//   model/decoder.layers.0.mlp.linear_fc1.weight         the weight, in the model's dtype
//   optimizer/master/..., optimizer/exp_avg/..., ...     the optimizer's states for it
#pragma once
#include <span>
#include <string>
#include <vector>

#include "nn/offload/stored_array.h"
#include "nn/tensor_region.h"

namespace mcpp {

/// Max number of dimensions of a tensor in a file.
inline constexpr std::size_t kMaxDimensions = 8;

/// Returns "model/<name>": the weight of a parameter.
std::string model_tensor(std::string_view param_name);
/// Returns true if the tensor of this name is a weight.
bool is_model_tensor(std::string_view name);
/// Returns "optimizer/<state>/<name>": one optimizer state of a parameter, such as "exp_avg".
std::string optimizer_tensor(std::string_view state, std::string_view param_name);

/// Description of a shard without its data.
struct ShardSpec : Region {
  std::string name;
  DType dtype = DType::F32;
};

/// Shard of a named tensor with its data: numel() elements, row-major over the box, on any device or in a storage.
struct NamedShard : Region {
  std::string name;
  Tensor data;         ///< undefined if the data are in `stored`
  StoredArray stored;  ///< undefined if the data are in `data`

  NamedShard() = default;
  /// Creates a shard that covers the full box.
  NamedShard(std::string tensor_name, Box where, Tensor values)
      : Region(full_region(std::move(where))), name(std::move(tensor_name)), data(std::move(values)) {}
  /// Creates a shard of elements [begin, end) of a box.
  NamedShard(std::string tensor_name, Box where, i64 begin, i64 end, Tensor values)
      : Region{std::move(where), begin, end}, name(std::move(tensor_name)), data(std::move(values)) {}
  NamedShard(std::string tensor_name, Box where, i64 begin, i64 end, const StoredArray& values)
      : Region{std::move(where), begin, end},
        name(std::move(tensor_name)),
        data(values.tensor()),
        stored(data.defined() ? StoredArray() : values) {}

  DType dtype() const { return stored.defined() ? stored.dtype() : data.dtype(); }
  bool is_in_host_memory() const { return data.defined() && data.device().type() == DeviceType::Cpu; }
  /// Copies the data to `to`, in host memory.
  void read(Tensor& to) const;
  void write(const Tensor& from);
};

/// Source of shards whose data are produced on request, so that they need not all be in memory simultaneously.
class ShardSource {
 public:
  virtual ~ShardSource() = default;
  virtual std::span<const ShardSpec> shards() const = 0;
  /// Returns the data of shards()[index] in host memory. Called once per shard, in any order.
  virtual Tensor data(std::size_t index) = 0;
};

/// Returns the descriptions of the shards. Throws an Internal error for a shard with the wrong number of elements.
std::vector<ShardSpec> specs_of(std::span<const NamedShard> shards);

}  // namespace mcpp

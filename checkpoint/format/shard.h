// What a checkpoint holds: named pieces of global tensors. Names begin with their kind:
//   model/decoder.layers.0.mlp.linear_fc1.weight         the weight, in the model's type
//   optimizer/master/..., optimizer/exp_avg/..., ...     what the optimizer keeps for it
#pragma once
#include <span>
#include <string>
#include <vector>

#include "nn/region.h"
#include "tensor/stored_numbers.h"

namespace mcpp {

/// Of a tensor that a file holds.
inline constexpr std::size_t kMostDimensions = 8;

/// "model/<name>": the weight of a parameter.
std::string model_tensor(std::string_view param_name);
/// Whether a tensor is such a weight.
bool is_model_tensor(std::string_view name);
/// "optimizer/<state>/<name>": one state of a parameter in the optimizer, such as "exp_avg".
std::string optimizer_tensor(std::string_view state, std::string_view param_name);

/// What is held, without the numbers.
struct ShardSpec : Region {
  std::string name;
  DType dtype = DType::F32;
};

/// A piece of a named tensor with its numbers: numel() elements, row-major over the box, on any device or stored.
struct NamedShard : Region {
  std::string name;
  Tensor data;                            ///< undefined where they are stored
  std::shared_ptr<StoredNumbers> stored;  ///< null where they are in `data`

  NamedShard() = default;
  /// A whole box.
  NamedShard(std::string tensor_name, Box where, Tensor numbers)
      : Region(whole(std::move(where))), name(std::move(tensor_name)), data(std::move(numbers)) {}
  /// Elements [begin, end) of a box.
  NamedShard(std::string tensor_name, Box where, i64 begin, i64 end, Tensor numbers)
      : Region{std::move(where), begin, end}, name(std::move(tensor_name)), data(std::move(numbers)) {}
  NamedShard(std::string tensor_name, Box where, i64 begin, i64 end, std::shared_ptr<StoredNumbers> numbers)
      : Region{std::move(where), begin, end},
        name(std::move(tensor_name)),
        data(numbers->tensor()),
        stored(data.defined() ? nullptr : std::move(numbers)) {}

  DType dtype() const { return stored ? stored->dtype() : data.dtype(); }
  bool is_in_host_memory() const { return data.defined() && data.device().type() == DeviceType::Cpu; }
  /// Copies the numbers to `to`, in host memory.
  void read(Tensor& to) const;
  void write(const Tensor& from);
};

/// Shards whose numbers are made when they are asked for, so that they need not be in memory all at once.
class ShardSource {
 public:
  virtual ~ShardSource() = default;
  virtual std::span<const ShardSpec> shards() const = 0;
  /// The numbers of shards()[index], in host memory; asked for once each, in any order.
  virtual Tensor data(std::size_t index) = 0;
};

/// What the shards hold. An Internal error for one without as many numbers as it says.
std::vector<ShardSpec> specs_of(std::span<const NamedShard> shards);

/// The shards at hand, none of them stored.
class ShardList final : public ShardSource {
 public:
  explicit ShardList(std::span<const NamedShard> shards);
  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override { return data_[index]; }

 private:
  std::vector<ShardSpec> specs_;
  std::vector<Tensor> data_;
};

}  // namespace mcpp

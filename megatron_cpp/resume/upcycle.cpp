#include "megatron_cpp/resume/upcycle.h"

#include <utility>
#include <vector>

#include "model/layers/moe/router.h"
#include "model/meta_model.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// Parameter of the model with experts, without storage.
struct UpcycledParam {
  Param param;
  /// Dense parameter that it, or each part of it along the first axis, is copied from; empty = drawn at random.
  std::string source;
  bool is_stacked;
};

/// Returns the MLP parameter that an expert parameter is initialized with.
std::string dense_name(std::string name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  if (const std::size_t at = name.find(kExperts); at != std::string::npos) name.replace(at, kExperts.size(), ".mlp.");
  return name;
}

UpcycledParam make_upcycled_param(const Param& param) {
  const bool is_router = param.name.find(".mlp.router.") != std::string::npos;
  const std::string source = is_router ? "" : dense_name(param.name);
  return {.param = Param(param.name, param.box, param.init, param.init_std),
          .source = source,
          .is_stacked = !is_router && source != param.name};
}

class Upcycled final : public ShardSource {
 public:
  Upcycled(CheckpointReader& dense, const ModelConfig& model, u64 seed, Device& device)
      : dense_(dense), seed_(seed), device_(device) {
    visit_meta_params(model, [&](const Param& param) { params_.push_back(make_upcycled_param(param)); });
    for (const UpcycledParam& entry : params_) add(entry);
    if (model.moe.router_enable_expert_bias) add_biases(model);
  }

  std::span<const ShardSpec> shards() const override { return specs_; }

  Tensor data(std::size_t index) override {
    const ShardSpec& spec = specs_[index];
    if (index >= params_.size()) return Tensor::zeros(spec.box.shape, spec.dtype, device_, MemoryClass::Other);
    UpcycledParam& entry = params_[index];
    Tensor values = Tensor::empty(spec.box.shape, spec.dtype, device_, MemoryClass::Other);
    if (entry.source.empty()) {
      initialize(entry.param, seed_, 0, values);
      return values;
    }
    const i64 copies = entry.is_stacked ? spec.box.shape[0] : 1;
    Tensor first = values.flat(0, values.numel() / copies);
    Shape shape(spec.box.shape.begin() + (entry.is_stacked ? 1 : 0), spec.box.shape.end());
    const Box box{shape, Shape(shape.size(), 0), shape};
    NamedShard shard(model_tensor(entry.source), box, first);
    dense_.read(shard, Conversion::Refuse);
    for (i64 copy = 1; copy < copies; ++copy) {
      Tensor other = values.flat(copy * first.numel(), first.numel());
      ops::copy(first, other);
    }
    return values;
  }

 private:
  void add(const UpcycledParam& entry) {
    ShardSpec spec;
    static_cast<Region&>(spec) = whole(entry.param.box);
    spec.name = model_tensor(entry.param.name);
    const std::string source = entry.source.empty() ? params_.front().source : entry.source;
    spec.dtype = tensor_entry(dense_.manifest(), model_tensor(source), dense_.directory()).dtype;
    specs_.push_back(std::move(spec));
  }
  void add_biases(const ModelConfig& model) {
    for (const UpcycledParam& entry : params_) {
      if (!entry.source.empty()) continue;
      ShardSpec spec;
      static_cast<Region&>(spec) = whole(slab({model.moe.num_experts}, 0, 0, model.moe.num_experts));
      spec.name = model_tensor(expert_bias_name(entry.param.name));
      spec.dtype = DType::F32;
      specs_.push_back(std::move(spec));
    }
  }

  CheckpointReader& dense_;
  u64 seed_;
  Device& device_;
  std::vector<UpcycledParam> params_;
  std::vector<ShardSpec> specs_;
};

}  // namespace

std::unique_ptr<ShardSource> upcycle(CheckpointReader& dense, const ModelConfig& upcycled, u64 seed, Device& device) {
  check_input(
      upcycled.moe.shared_expert_intermediate_size == 0,
      "model.moe_shared_expert_intermediate_size: a dense model has no weights to initialize a shared expert with");
  check_input(upcycled.moe_ffn() == upcycled.max_ffn() && !upcycled.ffn_hidden_size.is_list(),
              "model.moe_ffn_hidden_size: experts are initialized with MLPs, of width ", upcycled.max_ffn(), ", not ",
              upcycled.moe_ffn());
  return std::make_unique<Upcycled>(dense, upcycled, seed, device);
}

}  // namespace mcpp

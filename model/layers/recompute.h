// Full recomputation (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): a group of layers saves only
// its input; backward repeats the forward pass to restore the tensors that the layers save. Counter-based dropout makes
// both runs identical. If all tensor-parallel ranks have the same input, each may save a shard of it
// (distribute_saved_activations in Megatron-LM, partition_activations in DeepSpeed).
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "nn/module.h"
#include "tensor/ops/ops.h"

namespace mcpp {

class RecomputedLayers final : public Module {
 public:
  /// `holders` are the ranks that each save a shard of the input; nullptr: this rank saves the full input.
  explicit RecomputedLayers(std::vector<std::unique_ptr<Module>> layers, Communicator* holders = nullptr)
      : layers_(std::move(layers)), holders_(holders) {}

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override {
    if (microbatch.saves_for_backward) microbatch.save(this, holders_ ? shard_input(x) : x);
    MicrobatchContext forward_context = microbatch.clone_for_recompute();
    forward_context.saves_for_backward = false;
    return run(x, forward_context);
  }

  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override {
    MicrobatchContext recompute_context = microbatch.clone_for_recompute();
    Tensor x = microbatch.take(this);
    if (holders_) x = gather_input(x, dy.shape());
    run(std::move(x), recompute_context);
    Tensor dx = dy;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer)
      dx = (*layer)->backward(dx, recompute_context);
    microbatch.take_delayed_wgrads(recompute_context);
    return dx;
  }

  ActivationPlacement output_placement(ActivationPlacement x) const override {
    for (const auto& layer : layers_) x = layer->output_placement(x);
    return x;
  }

  void visit(const ParamVisitor& f) override {
    for (const auto& layer : layers_) layer->visit(f);
  }

 private:
  /// Returns a copy of this rank's shard, so that the full tensor can be freed.
  Tensor shard_input(const Tensor& x) const {
    const i64 count = x.numel() / holders_->size();
    MCPP_CHECK(count * holders_->size() == x.numel(), x.shape(), " is not evenly sharded across ", holders_->size(),
               " ranks");
    Tensor part = Tensor::like(x, {count});
    ops::copy(x.flat(holders_->rank() * count, count), part);
    return part;
  }
  Tensor gather_input(const Tensor& part, const Shape& shape) const {
    Tensor x = Tensor::like(part, shape);
    holders_->all_gather(part, x).wait();
    return x;
  }
  Tensor run(Tensor x, MicrobatchContext& microbatch) {
    for (const auto& layer : layers_) x = layer->forward(x, microbatch);
    return x;
  }

  std::vector<std::unique_ptr<Module>> layers_;
  Communicator* holders_;
};

}  // namespace mcpp

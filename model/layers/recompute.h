// Full recomputation (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): a group of layers saves only
// its input; backward repeats the forward pass to restore what the layers need. Counter-based dropout makes both runs
// identical. If all tensor-parallel ranks have the same input, each may save a shard of it
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
  /// `holders`: ranks that each save a shard of the input; nullptr: this rank saves all of it.
  explicit RecomputedLayers(std::vector<std::unique_ptr<Module>> layers, Communicator* holders = nullptr)
      : layers_(std::move(layers)), holders_(holders) {}

  Tensor forward(const Tensor& x, Pass& pass) override {
    if (pass.keeps_stash) pass.save(this, holders_ ? own_part(x) : x);
    Pass quiet = pass.again();
    quiet.keeps_stash = false;
    return run(x, quiet);
  }

  Tensor backward(const Tensor& dy, Pass& pass) override {
    Pass again = pass.again();
    Tensor x = pass.take(this);
    if (holders_) x = gathered(x, dy.shape());
    run(std::move(x), again);
    Tensor dx = dy;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) dx = (*layer)->backward(dx, again);
    pass.defer_from(again);
    return dx;
  }

  ActivationPlacement gives(ActivationPlacement x) const override {
    for (const auto& layer : layers_) x = layer->gives(x);
    return x;
  }

  void visit(const ParamVisitor& f) override {
    for (const auto& layer : layers_) layer->visit(f);
  }

 private:
  /// Returns a copy, so that the full tensor can be freed.
  Tensor own_part(const Tensor& x) const {
    const i64 count = x.numel() / holders_->size();
    MCPP_CHECK(count * holders_->size() == x.numel(), x.shape(), " is cut over ", holders_->size(), " ranks");
    Tensor part = Tensor::like(x, {count});
    ops::copy(x.flat(holders_->rank() * count, count), part);
    return part;
  }
  Tensor gathered(const Tensor& part, const Shape& shape) const {
    Tensor x = Tensor::like(part, shape);
    holders_->all_gather(part, x).wait();
    return x;
  }
  Tensor run(Tensor x, Pass& pass) {
    for (const auto& layer : layers_) x = layer->forward(x, pass);
    return x;
  }

  std::vector<std::unique_ptr<Module>> layers_;
  Communicator* holders_;
};

}  // namespace mcpp

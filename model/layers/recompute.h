// Full recomputation (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): a group of layers keeps only
// its input; backward runs forward once more to get back what the layers need. Counter-based dropout makes the second
// run the same.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace mcpp {

class RecomputedLayers final : public Module {
 public:
  explicit RecomputedLayers(std::vector<std::unique_ptr<Module>> layers) : layers_(std::move(layers)) {}

  Tensor forward(const Tensor& x, Pass& pass) override {
    pass.save(this, x);
    Pass quiet = pass.again();
    quiet.keeps_stash = false;
    return run(x, quiet);
  }

  Tensor backward(const Tensor& dy, Pass& pass) override {
    Pass again = pass.again();
    run(pass.take(this), again);
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
  Tensor run(Tensor x, Pass& pass) {
    for (const auto& layer : layers_) x = layer->forward(x, pass);
    return x;
  }

  std::vector<std::unique_ptr<Module>> layers_;
};

}  // namespace mcpp

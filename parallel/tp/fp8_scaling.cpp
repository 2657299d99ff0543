#include "parallel/tp/fp8_scaling.h"

namespace mcpp {
namespace {

/// Indices of the saved values.
constexpr i64 kInput = 0, kWeight = 1, kSaved = 2;

Tensor zeros(i64 count, const Tensor& like) {
  return Tensor::zeros({count}, DType::F32, like.device());
}

}  // namespace

/// Takes the maximum over all ranks that hold parts. Replicas do not change a maximum.
void Fp8Scaling::reduce_amax(Tensor& amax) const {
  for (Communicator* group : recipe_->holders) group->all_reduce(amax, ReduceOp::Max).wait();
}

LinearScales Fp8Scaling::scales(const Tensor& saved) const {
  return {.input = Fp8Scale{recipe_->forward, saved.flat(kInput, 1)},
          .weight = Fp8Scale{recipe_->forward, saved.flat(kWeight, 1)},
          .gradient = std::nullopt};
}

LinearScales Fp8Scaling::forward(const void* owner, const Tensor& input, const std::vector<Tensor>& weight,
                                 MicrobatchContext& context) const {
  if (!recipe_) return {};
  Tensor amax = zeros(kSaved, input), input_amax = amax.flat(kInput, 1), weight_amax = amax.flat(kWeight, 1);
  ops::add_amax(input, input_amax);
  for (const Tensor& part : weight) ops::add_amax(part, weight_amax);
  reduce_amax(amax);
  context.save(owner, amax);
  return scales(amax);
}

LinearScales Fp8Scaling::backward(const void* owner, const std::vector<Tensor>& gradient,
                                  MicrobatchContext& context) const {
  if (!recipe_) return {};
  LinearScales all = scales(context.take(owner));
  Tensor amax = zeros(1, gradient.at(0));
  for (const Tensor& part : gradient) ops::add_amax(part, amax);
  reduce_amax(amax);
  all.gradient = Fp8Scale{recipe_->gradients, amax};
  return all;
}

void multiply_scaled(const Tensor& a, const std::optional<Fp8Scale>& a_scale, const Tensor& b,
                     const std::optional<Fp8Scale>& b_scale, Tensor& c, const ops::MatmulOptions& options) {
  if (a_scale && b_scale) return ops::fp8_matmul(a, *a_scale, b, *b_scale, c, options);
  ops::matmul(a, b, c, options);
}

}  // namespace mcpp

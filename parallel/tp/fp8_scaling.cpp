#include "parallel/tp/fp8_scaling.h"

#include "base/philox.h"

namespace mcpp {
namespace {

/// Indices of the saved values.
constexpr i64 kInput = 0, kWeight = 1, kSaved = 2;
/// An element of a transformed matrix is a sum of 16 elements divided by 4, and thus at most 4 times the largest
/// magnitude.
constexpr float kHadamardHeadroom = 4;

Tensor zeros(i64 count, const Tensor& like) {
  return Tensor::zeros({count}, DType::F32, like.device());
}

/// Returns the scale of an operand: one for the tensor or, if the recipe has blocks, one for each.
Fp8Scale scale_of(GemmRecipe recipe, Fp8Format format, const Tensor& amax, const BlockShape& block) {
  if (has_blocks(recipe)) return {.format = format, .amax = {}, .block = block};
  return {.format = format, .amax = amax, .block = {}};
}

}  // namespace

void set_fp8_rounding(Param& weight, const std::string& layer, const PassRecipes& passes, i64 matrices) {
  if (!rounds_weights_once(passes)) return;
  const i64 columns = weight.box.shape.back();
  const WeightBlocks blocks{.rows = weight.numel() / columns / matrices,
                            .columns = columns,
                            .block = weight_blocks(passes.forward, Contraction::Columns)};
  if (blocks.can_pack()) weight.fp8_rounding = Fp8Rounding{layer, blocks};
}

OutputColumns output_columns(const std::string& weight, const Box& box) {
  const std::size_t axes = box.shape.size() - 1;
  std::size_t cut = axes;  // after the last axis that is sharded
  while (cut > 0 && box.shape[cut - 1] == box.global[cut - 1]) --cut;
  i64 count = 1, global_count = 1;  // consecutive rows of the box, and the rows of the global matrix per index
  for (std::size_t axis = cut > 0 ? cut - 1 : 0; axis < axes; ++axis) count *= box.shape[axis];
  for (std::size_t axis = cut; axis < axes; ++axis) global_count *= box.global[axis];
  if (cut == 0) return {weight, {{0, 0, count}}};
  i64 runs = 1;
  for (std::size_t axis = 0; axis + 1 < cut; ++axis) runs *= box.shape[axis];
  OutputColumns columns{weight, {}};
  for (i64 run = 0; run < runs; ++run) {
    i64 rest = run, row = box.offset[cut - 1], size = box.global[cut - 1];
    for (std::size_t axis = cut - 1; axis-- > 0;) {
      row += (rest % box.shape[axis] + box.offset[axis]) * size;
      size *= box.global[axis], rest /= box.shape[axis];
    }
    columns.runs.push_back({run * count, row * global_count, count});
  }
  return columns;
}

std::optional<GemmScales> LinearScales::forward() const {
  const GemmRecipe recipe = passes.forward;
  if (recipe == GemmRecipe::Bf16) return std::nullopt;
  const BlockShape x = activation_blocks(recipe, Contraction::Columns), w = weight_blocks(recipe, Contraction::Columns);
  const TensorMagnitudes& amax = magnitudes(recipe);
  if (recipe == GemmRecipe::Nvfp4)
    return Nvfp4Operands{{.amax = amax.input, .block = x}, {.amax = amax.weight, .block = w}};
  return Fp8Operands{scale_of(recipe, Fp8Format::E4M3, amax.input, x),
                     scale_of(recipe, Fp8Format::E4M3, amax.weight, w)};
}

std::optional<GemmScales> LinearScales::dgrad(const OutputColumns& columns) const {
  const GemmRecipe recipe = passes.dgrad;
  if (recipe == GemmRecipe::Bf16) return std::nullopt;
  if (recipe == GemmRecipe::Nvfp4) return nvfp4_dgrad(columns);
  const TensorMagnitudes& amax = magnitudes(recipe);
  return Fp8Operands{
      scale_of(recipe, passes.gradients, amax.gradient, activation_blocks(recipe, Contraction::Columns)),
      scale_of(recipe, Fp8Format::E4M3, amax.weight, weight_blocks(recipe, Contraction::Rows)),
  };
}

std::optional<GemmScales> LinearScales::wgrad(const OutputColumns& columns) const {
  const GemmRecipe recipe = passes.wgrad;
  if (recipe == GemmRecipe::Bf16) return std::nullopt;
  if (recipe == GemmRecipe::Nvfp4) return nvfp4_wgrad(columns);
  const TensorMagnitudes& amax = magnitudes(recipe);
  return Fp8Operands{
      scale_of(recipe, passes.gradients, amax.gradient, activation_blocks(recipe, Contraction::Rows)),
      scale_of(recipe, Fp8Format::E4M3, amax.input, activation_blocks(recipe, Contraction::Rows)),
  };
}

StochasticRounding LinearScales::stochastic(const char* pass, const OutputColumns& columns) const {
  return {.key = philox_key(seed, pass + columns.weight),
          .samples = samples,
          .positions = positions,
          .columns = columns.runs};
}

Nvfp4Operands LinearScales::nvfp4_dgrad(const OutputColumns& columns) const {
  return {{.amax = current.gradient,
           .block = activation_blocks(GemmRecipe::Nvfp4, Contraction::Columns),
           .stochastic = stochastic("dgrad.", columns)},
          {.amax = current.weight, .block = weight_blocks(GemmRecipe::Nvfp4, Contraction::Rows)}};
}

Nvfp4Operands LinearScales::nvfp4_wgrad(const OutputColumns& columns) const {
  const BlockShape block = activation_blocks(GemmRecipe::Nvfp4, Contraction::Rows);
  return {{.amax = current.gradient,
           .headroom = kHadamardHeadroom,
           .block = block,
           .stochastic = stochastic("wgrad.", columns)},
          {.amax = current.input, .headroom = kHadamardHeadroom, .block = block},
          static_cast<u32>(philox_key(seed, "hadamard." + columns.weight))};
}

/// Takes the maximum over all ranks that hold parts. Replicas do not change a maximum.
void Fp8Scaling::reduce_amax(Tensor& amax) const {
  for (Communicator* group : recipe_->holders) group->all_reduce(amax, ReduceOp::Max).wait();
}

bool Fp8Scaling::needs_amax(ScaledTensor tensor) const {
  const bool lacks_history = !recipe_->history || !recipe_->history->has_scale(tensor);
  return recipe_->passes.needs_amax() || (recipe_->passes.uses(GemmRecipe::Delayed) && lacks_history);
}

Tensor Fp8Scaling::delayed_amax(ScaledTensor tensor, const Tensor& current) const {
  return recipe_->history && recipe_->history->has_scale(tensor) ? recipe_->history->scaling_amax(tensor) : current;
}

LinearScales Fp8Scaling::scales(const Tensor& amax) const {
  LinearScales scales{.passes = recipe_->passes};
  scales.seed = recipe_->seed;
  TensorMagnitudes &current = scales.current, &delayed = scales.delayed;
  if (amax.defined()) current.input = amax.flat(kInput, 1), current.weight = amax.flat(kWeight, 1);
  if (!recipe_->passes.uses(GemmRecipe::Delayed)) return scales;
  delayed.input = delayed_amax(ScaledTensor::Input, current.input);
  delayed.weight = delayed_amax(ScaledTensor::Weight, current.weight);
  return scales;
}

LinearScales Fp8Scaling::forward(const void* owner, const Tensor& input, const std::vector<Tensor>& weight,
                                 MicrobatchContext& context) const {
  if (!recipe_) return {};
  if (AmaxHistory* history = recipe_->history; history && context.training) {
    history->record(ScaledTensor::Input, input);
    history->record_weight(weight);
  }
  if (!saves_amax()) return scales({});
  Tensor amax = zeros(kSaved, input), input_amax = amax.flat(kInput, 1), weight_amax = amax.flat(kWeight, 1);
  ops::add_amax(input, input_amax);
  for (const Tensor& part : weight) ops::add_amax(part, weight_amax);
  reduce_amax(amax);
  context.save(owner, amax);
  return scales(amax);
}

LinearScales Fp8Scaling::backward(const void* owner, const std::vector<Tensor>& gradient, MicrobatchContext& context,
                                  i64 first_row) const {
  if (!recipe_) return {};
  LinearScales all = scales(saves_amax() ? context.take(owner) : Tensor());
  if (recipe_->history)
    for (const Tensor& part : gradient) recipe_->history->record(ScaledTensor::Gradient, part);
  if (needs_amax(ScaledTensor::Gradient)) {
    all.current.gradient = zeros(1, gradient.at(0));
    for (const Tensor& part : gradient) ops::add_amax(part, all.current.gradient);
    reduce_amax(all.current.gradient);
  }
  if (recipe_->passes.uses(GemmRecipe::Delayed))
    all.delayed.gradient = delayed_amax(ScaledTensor::Gradient, all.current.gradient);
  if (recipe_->passes.uses(GemmRecipe::Nvfp4)) {
    all.samples = context.samples;
    all.positions = context.positions.from(first_row);
  }
  return all;
}

namespace {

Tensor transformed(const Tensor& x, u32 signs) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), MemoryClass::Workspace);
  ops::random_hadamard(x, signs, y);
  return y;
}

void multiply_nvfp4(const Tensor& a, const Tensor& b, Tensor& c, const Nvfp4Operands& scales,
                    const ops::MatmulOptions& options) {
  if (!scales.hadamard_signs) return ops::nvfp4_matmul(a, scales.a, b, scales.b, c, options);
  const u32 signs = *scales.hadamard_signs;
  ops::nvfp4_matmul(transformed(a, signs), scales.a, transformed(b, signs), scales.b, c, options);
}

}  // namespace

void multiply_scaled(const Tensor& a, const Tensor& b, Tensor& c, const std::optional<GemmScales>& scales,
                     const ops::MatmulOptions& options) {
  if (!scales) return ops::matmul(a, b, c, options);
  if (const auto* fp4 = std::get_if<Nvfp4Operands>(&*scales)) return multiply_nvfp4(a, b, c, *fp4, options);
  const auto& fp8 = std::get<Fp8Operands>(*scales);
  ops::fp8_matmul(a, fp8.a, b, fp8.b, c, options);
}

}  // namespace mcpp

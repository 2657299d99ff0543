#include "model/config/context.h"

#include <algorithm>
#include <cmath>

#include "base/glob.h"
#include "base/philox.h"
#include "model/config/block_spec.h"
#include "nn/microbatch_context.h"
#include "tensor/ops/ops.h"

namespace mcpp {

std::vector<LayerGroup> layer_groups(const Recompute& recompute, i64 layers) {
  const bool is_uniform = recompute.method == Recompute::Method::Uniform;
  std::vector<LayerGroup> groups;
  for (i64 first = 0; first < layers; first += groups.back().layers) {
    const bool is_recomputed =
        recompute.granularity == Recompute::Granularity::Full && (is_uniform || first < recompute.num_layers);
    const i64 count = is_recomputed && is_uniform ? std::min(recompute.num_layers, layers - first) : 1;
    groups.push_back({count, is_recomputed});
  }
  return groups;
}

double ModelContext::output_init_std(i64 layer) const {
  if (config.depth_init == DepthInit::None) return config.init_method_std;
  const i64 layers = config.depth_init == DepthInit::Layer ? std::min(layer + 1, config.num_layers) : config.num_layers;
  return config.init_method_std / std::sqrt(static_cast<double>(count_branches(config) / config.num_layers * layers));
}

Positions ModelContext::positions(const Tensor& x, const MicrobatchContext& microbatch) const {
  const Positions sample{microbatch.positions, microbatch.position_starts};
  if (!splits_sequence()) return sample;
  return sample.slice(tp.rank() * x.dim(0), (tp.rank() + 1) * x.dim(0));
}

Dropout ModelContext::dropout_for(double p, const std::string& site, const PositionRanges& positions,
                                  const MicrobatchContext& microbatch) const {
  if (p == 0 || !microbatch.training) return {};
  return {.p = static_cast<float>(p),
          .key = philox_key(seed, "dropout." + site),
          .samples = microbatch.samples,
          .sample_indices = microbatch.sample_indices,
          .positions = positions};
}

AxisPlacement ModelContext::word_embedding_ranks() const {
  if (!config.output_uses_embeddings() || final_norm_rank == 0) return {};
  return {Spread::Partial, Holders{.first = 0, .count = 2, .stride = final_norm_rank}};
}

bool ModuleRecipe::matches(std::string_view module) const {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_glob(module, pattern); });
}

bool Fp8Layers::uses(GemmRecipe recipe_to_find) const {
  const auto has_recipe = [&](const ModuleRecipe& rule) { return rule.recipe.uses(recipe_to_find); };
  return (first < end && recipe.uses(recipe_to_find)) || std::ranges::any_of(modules, has_recipe);
}

const PassRecipes* Fp8Layers::find(std::string_view module) const {
  const auto it = std::ranges::find_if(modules, [&](const ModuleRecipe& rule) { return rule.matches(module); });
  return it == modules.end() || it->recipe.is_bf16() ? nullptr : &it->recipe;
}

const PassRecipes* Fp8Layers::find(std::string_view module, i64 layer) const {
  const bool is_listed = std::ranges::any_of(modules, [&](const ModuleRecipe& rule) { return rule.matches(module); });
  if (is_listed) return find(module);
  return has(layer) ? &recipe : nullptr;
}

namespace {

std::optional<Fp8Recipe> recipe_of(const PassRecipes* passes, std::string_view module, const ModelContext& context) {
  if (!passes) return std::nullopt;
  Fp8Recipe recipe{.passes = *passes, .holders = {}, .seed = context.seed};
  for (Communicator* group : {&context.tp, context.cp.heads, context.cp.ring})
    if (group && group->size() > 1) recipe.holders.push_back(group);
  if (context.amax_histories && passes->uses(GemmRecipe::Delayed))
    recipe.history = &context.amax_histories->add(std::string(module));
  return recipe;
}

}  // namespace

std::optional<Fp8Recipe> ModelContext::fp8_recipe(std::string_view module, i64 layer) const {
  return recipe_of(fp8.find(module, layer), module, *this);
}

std::optional<Fp8Recipe> ModelContext::fp8_recipe(std::string_view module) const {
  return recipe_of(fp8.find(module), module, *this);
}

void ModelContext::place_in_stream(Param& param) const {
  param.placement.tp = {gradient_spread(stream())};
}

}  // namespace mcpp

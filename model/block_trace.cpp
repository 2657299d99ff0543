#include "model/block_trace.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "model/meta_model.h"
#include "model/transformer_layer.h"

namespace mcpp {
namespace {

/// Allocates the parameters of a module and records its passes. `forward` and `backward` are called with the context.
template <class ModuleType, class Forward, class Backward>
BlockTrace record(MetaRun& run, ModuleType& module, const Forward& forward, const Backward& backward) {
  BlockTrace trace;
  std::map<const void*, std::string> names;
  module.visit([&](Param& param) {
    run.allocate(param);
    names[param.value.raw()] = names[param.main_grad.raw()] = param.name;
    trace.params.push_back({.name = param.name,
                            .shape = param.box.shape,
                            .grid = param.placement.grid,
                            .is_matrix = !param.matrices.empty(),
                            .has_partial_slices = param.has_partial_slices()});
  });
  MicrobatchContext microbatch = run.make_microbatch();
  run.device().record_to(&trace.forward);
  forward(microbatch);
  run.device().record_to(&trace.backward);
  backward(microbatch);
  run.device().record_to(nullptr);
  for (OpTrace* pass : {&trace.forward, &trace.backward})
    for (OpRecord& op : pass->ops)
      if (const auto name = names.find(op.weight_data); name != names.end()) op.weight = name->second;
  return trace;
}

BlockTrace record_block(const ModelConfig& config, const ActivationSetup& setup, const BlockSpec& block,
                        i64 layer_index) {
  MetaRun run(config, setup);
  RotaryTable rotary(run.context());
  TransformerLayer layer(layer_index, block, run.context(), rotary);
  if (layer.router()) layer.router()->allocate_state();
  return record(
      run, layer, [&](MicrobatchContext& microbatch) { layer.forward(run.make_input(), microbatch); },
      [&](MicrobatchContext& microbatch) { layer.backward(run.make_input(), microbatch); });
}

BlockTrace record_output(ModelConfig config, const ActivationSetup& setup, const StageContents& stage) {
  config.untie_embeddings_and_output_weights = true;  // changes only the name of the weight
  MetaOutput output(config, setup, stage);
  return record(
      output.run(), output, [&](MicrobatchContext& microbatch) { output.forward(microbatch); },
      [&](MicrobatchContext& microbatch) { output.backward(microbatch); });
}

/// Removes the first occurrence of `part`, and all text before it if `drops_prefix`.
void remove_part(std::string& text, std::string_view part, bool drops_prefix) {
  const std::size_t at = text.find(part);
  if (at != std::string::npos) text.erase(drops_prefix ? 0 : at, drops_prefix ? at + part.size() : part.size());
}

}  // namespace

std::string short_weight_name(const std::string& param) {
  std::string name = param;
  for (const char* module : {".self_attention.", ".mlp."}) remove_part(name, module, true);
  for (const char* part : {"linear_", "_layer", ".weight"}) remove_part(name, part, false);
  return name;
}

BlockSpec mixer_of(const BlockSpec& block) {
  return {.mixer = block.mixer, .feed_forward = {}};
}

BlockSpec feed_forward_of(const BlockSpec& block) {
  return {.mixer = {}, .feed_forward = block.feed_forward};
}

const BlockTrace& BlockTraces::get(const ActivationSetup& setup, const BlockSpec& block, i64 layer) {
  const std::tuple key{setup_of_layer(config_, setup), block, setup.fp8.is_empty() ? 0 : layer};
  const auto it = traces_.find(key);
  if (it != traces_.end()) return it->second;
  const BlockTrace trace = record_block(config_, std::get<0>(key), block, std::get<2>(key));
  return traces_.emplace(key, trace).first->second;
}

const BlockTrace& BlockTraces::output(const ActivationSetup& setup, const StageContents& stage) {
  const std::pair key{setup_of_layer(config_, setup), stage.output_part()};
  const auto it = outputs_.find(key);
  if (it != outputs_.end()) return it->second;
  return outputs_.emplace(key, record_output(config_, key.first, key.second)).first->second;
}

namespace {

constexpr std::string_view kLayers = "decoder.layers.";

/// Returns the recipe of the linear layer of a weight; bf16 if it has none.
PassRecipes recipe_of(const Fp8Layers& fp8, const Param& weight, i64 layer) {
  std::string_view module = weight.name;
  for (const std::string_view suffix : {".weight", ".gate"})
    if (module.ends_with(suffix)) module.remove_suffix(suffix.size());
  const PassRecipes* recipe = weight.placement.grid == GridKind::Expert ? fp8.find(module) : fp8.find(module, layer);
  return recipe ? *recipe : PassRecipes::of(GemmRecipe::Bf16);
}

}  // namespace

std::vector<i64> recipe_variants(const ModelConfig& config, const Fp8Layers& fp8) {
  std::vector<i64> variants(static_cast<std::size_t>(config.num_layers));
  for (std::size_t layer = 0; layer < variants.size(); ++layer) variants[layer] = fp8.variant(static_cast<i64>(layer));
  if (fp8.modules.empty()) return variants;
  std::vector<std::vector<PassRecipes>> recipes(variants.size());
  visit_meta_params(config, [&](const Param& param) {
    if (!param.name.starts_with(kLayers)) return;
    const i64 layer = std::strtoll(param.name.c_str() + kLayers.size(), nullptr, 10);
    if (!param.matrices.empty()) recipes.at(static_cast<std::size_t>(layer)).push_back(recipe_of(fp8, param, layer));
  });
  std::map<std::vector<PassRecipes>, i64> indices;
  for (std::size_t layer = 0; layer < variants.size(); ++layer)
    variants[layer] = indices.try_emplace(recipes[layer], static_cast<i64>(layer)).first->second;
  return variants;
}

}  // namespace mcpp

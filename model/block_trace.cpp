#include "model/block_trace.h"

#include <array>
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

BlockTrace record_block(const ModelConfig& config, const ActivationSetup& setup, const BlockSpec& block) {
  MetaRun run(config, setup);
  RotaryTable rotary(run.context());
  TransformerLayer layer(0, block, run.context(), rotary);
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

const BlockTrace& BlockTraces::get(const ActivationSetup& setup, const BlockSpec& block) {
  const std::pair key{setup_of_layer(config_, setup), block};
  const auto it = traces_.find(key);
  if (it != traces_.end()) return it->second;
  return traces_.emplace(key, record_block(config_, key.first, block)).first->second;
}

const BlockTrace& BlockTraces::output(const ActivationSetup& setup, const StageContents& stage) {
  const std::pair key{setup_of_layer(config_, setup), stage.output_part()};
  const auto it = outputs_.find(key);
  if (it != outputs_.end()) return it->second;
  return outputs_.emplace(key, record_output(config_, key.first, key.second)).first->second;
}

}  // namespace mcpp

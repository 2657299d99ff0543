#include "megatron_cpp/setup/low_precision_check.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/integer_math.h"
#include "base/strings.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/layer_names.h"
#include "megatron_cpp/setup/model_provider.h"
#include "model/meta_model.h"
#include "parallel/cp/sequence_partition.h"
#include "tensor/ops/low_precision/fp8_weights.h"

namespace mcpp {
namespace {

constexpr const char* kOutputLayer = "output_layer";

/// Last parts of the names of linear layers that support recipes, in addition to the output layer.
constexpr auto kLinearLayers = std::to_array<std::string_view>(
    {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj",
     "linear_kv_down_proj", "linear_kv_up_proj", "in_proj", "out_proj", "gate_down_proj", "gate_up_proj",
     "decay_down_proj", "decay_up_proj"});

/// Shard of the weight of a linear layer on the first rank. Its axes except the last are rows of the matrix.
struct LinearLayer {
  std::string name;
  Box box;
  bool is_expert = false;

  /// Returns the index in the decoder; -1 for other layers.
  i64 layer() const {
    constexpr std::string_view kPrefix = "decoder.layers.";
    return name.starts_with(kPrefix) ? std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10) : -1;
  }
  const PassRecipes* recipe(const Fp8Layers& fp8) const {
    return is_expert || name == kOutputLayer ? fp8.find(name) : fp8.find(name, layer());
  }
  bool is_whole() const { return box.shape == box.global; }
};

/// Returns the name of the linear layer that a weight belongs to; empty if it is not of a linear layer.
std::string linear_layer_of(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight", kGate = ".linear_qkv.gate";
  if (weight == "embedding.word_embeddings.weight") return kOutputLayer;  // if they are tied
  if (!weight.ends_with(kWeight)) return "";
  weight.remove_suffix(kWeight.size());
  if (weight == kOutputLayer) return kOutputLayer;
  if (weight.ends_with(kGate)) weight.remove_suffix(std::string_view(".gate").size());
  const std::string_view last = weight.substr(weight.rfind('.') + 1);
  return std::ranges::count(kLinearLayers, last) > 0 ? std::string(weight) : "";
}

/// Returns the shards of all weights of linear layers. A layer may have several.
std::vector<LinearLayer> linear_layers(const ModelConfig& model, const ActivationSetup& setup = {}) {
  std::vector<LinearLayer> layers;
  const auto add = [&](const Param& param) {
    const bool is_tied = !model.untie_embeddings_and_output_weights;
    if (!is_tied && param.name.starts_with("embedding.")) return;
    std::string name = linear_layer_of(param.name);
    if (!name.empty()) layers.push_back({std::move(name), param.box, param.placement.grid == GridKind::Expert});
  };
  visit_meta_params(model, add, setup);
  return layers;
}

/// Returns true if a linear layer of routed experts receives tokens, or gradients of its outputs, in fp8 with
/// training.moe_fp8_dispatch.
bool receives_fp8(const LinearLayer& layer, const Fp8Layers& fp8) {
  const PassRecipes* recipe = layer.is_expert ? layer.recipe(fp8) : nullptr;
  return recipe && has_blocks(layer.name.ends_with("linear_fc1") ? recipe->forward : recipe->dgrad);
}

/// Linear layers that take a table.
struct TableMembers {
  std::set<std::string> layers;
  std::set<std::string> taken;  ///< layers that match too, but take an earlier table
};

std::vector<TableMembers> find_members(const Fp8Layers& fp8, const std::vector<LinearLayer>& layers) {
  std::vector<TableMembers> members(fp8.modules.size());
  for (const LinearLayer& layer : layers) {
    bool is_taken = false;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!fp8.modules[i].matches(layer.name)) continue;
      (is_taken ? members[i].taken : members[i].layers).insert(layer.name);
      is_taken = true;
    }
  }
  return members;
}

/// Collects the problems of all layers, each once.
class Problems {
 public:
  template <class... Text>
  void add(const Text&... text) {
    std::string problem = str(text...);
    if (std::ranges::count(all_, problem) == 0) all_.push_back(std::move(problem));
  }
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

/// Checks the recipes of the linear layers of a run.
class Checker {
 public:
  Checker(const Config& config, int world_size)
      : config_(config),
        layout_(layout_of(config, world_size)),
        setup_(activation_setup(layout_, DType::BF16)),
        fp8_(fp8_layers(config)),
        layers_(linear_layers(config.model, setup_)) {}

  std::vector<std::string> problems() {
    check_tables();
    for (const LinearLayer& layer : layers_) {
      const PassRecipes* recipe = layer.recipe(fp8_);
      if (!recipe) continue;
      if (layer.is_expert) check_expert(layer, *recipe);
      check_features(layer, *recipe);
      if (!layer.is_expert) check_tokens(layer, *recipe);
    }
    if (config_.training.moe_fp8_dispatch) check_dispatch();
    if (config_.parallel.formats.fp8_param_gather) check_param_gather();
    return problems_.take();
  }

 private:
  void check_tables() {
    const std::vector<TableMembers> members = find_members(fp8_, layers_);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!members[i].layers.empty()) continue;
      const std::vector<std::string>& patterns = fp8_.modules[i].patterns;
      const std::string start = str("training.low_precision: table ", i + 1, ": modules: ");
      if (members[i].taken.empty())
        problems_.add(start, "no linear layer matches ", quoted_patterns(patterns), "; ", similar_names(patterns));
      else
        problems_.add(start, "the ", members[i].taken.size(), " linear layers that match ", quoted_patterns(patterns),
                      " match an earlier table, and the first match applies; move this table up, or remove it");
    }
  }

  std::string similar_names(const std::vector<std::string>& patterns) const {
    std::set<std::string> names, nearest;
    for (const LinearLayer& layer : layers_) names.insert(name_of_all_layers(layer.name));
    const std::vector<std::string> candidates(names.begin(), names.end());
    for (const std::string& pattern : patterns)
      if (std::string name = nearest_name(name_of_all_layers(pattern), candidates); !name.empty())
        nearest.insert(std::move(name));
    if (nearest.empty()) return str("the model has ", join(candidates, ", "));
    return str("did you mean ", join(std::vector(nearest.begin(), nearest.end()), " or "), "?");
  }

  /// Returns the beginning of messages on a layer: the key that its recipe comes from, and its name.
  std::string title(const LinearLayer& layer) const {
    const bool is_listed =
        std::ranges::any_of(fp8_.modules, [&](const ModuleRecipe& rule) { return rule.matches(layer.name); });
    return str(is_listed ? "training.low_precision: " : "training.fp8_recipe: ", name_of_all_layers(layer.name), ": ");
  }

  void check_expert(const LinearLayer& layer, const PassRecipes& recipe) {
    for (const GemmRecipe other : {GemmRecipe::Tensorwise, GemmRecipe::Delayed, GemmRecipe::Nvfp4})
      if (recipe.uses(other))
        problems_.add(title(layer), "routed experts support \"blockwise\" and \"mxfp8\", not \"", enum_name(other),
                      "\"");
    if (recipe.wgrad != GemmRecipe::Bf16)
      problems_.add(title(layer),
                    "set wgrad = \"bf16\": in weight gradients of routed experts, blocks of tokens would "
                    "depend on which ranks exchange tokens");
  }

  /// Checks that experts of a layer receive rows in fp8.
  void check_dispatch() {
    if (std::ranges::any_of(layers_, [&](const LinearLayer& layer) { return receives_fp8(layer, fp8_); })) return;
    const bool has_experts = std::ranges::any_of(layers_, &LinearLayer::is_expert);
    problems_.add("training.moe_fp8_dispatch: ",
                  has_experts ? "no routed expert has the recipe \"blockwise\" or \"mxfp8\"; set it in a table of "
                                "training.low_precision that matches \"*.experts.*\", or remove the key"
                              : "the model has no routed experts (model.num_experts); remove it");
  }

  /// Checks that the blocks of a weight, and the blocks of the activations along the same axis, lie in one shard.
  void check_features(const LinearLayer& layer, const PassRecipes& recipe) {
    const BlockShape forward = weight_blocks(recipe.forward, Contraction::Columns),
                     dgrad = weight_blocks(recipe.dgrad, Contraction::Rows);
    const auto check = [&](i64 block, i64 size, const char* what) {
      if (block <= 1 || size % block == 0) return;
      problems_.add(title(layer), size, " ", what, " per rank with ",
                    layer.is_expert ? "parallel.expert_tensor_parallel_size " : "parallel.tensor_model_parallel_size ",
                    layer.is_expert ? layout_.expert_tp() : layout_.tp, " are not a multiple of the block size ", block,
                    "; blocks must not straddle ranks");
    };
    const Shape &shape = layer.box.shape, &global = layer.box.global;
    if (shape.back() != global.back()) check(std::max(forward.columns, dgrad.columns), shape.back(), "input features");
    i64 rows = 1;  // consecutive rows of the global matrix
    for (std::size_t axis = shape.size() - 1; axis-- > (layer.is_expert ? 1 : 0);) {
      rows *= shape[axis];
      if (shape[axis] == global[axis]) continue;
      return check(std::max(forward.rows, dgrad.rows), rows, "output features");
    }
  }

  /// Checks that the blocks of tokens of a weight gradient lie on one rank.
  void check_tokens(const LinearLayer& layer, const PassRecipes& recipe) {
    const i64 block = block_size(recipe.wgrad);
    if (block == 0) return;
    const i64 batch = layout_.micro_batch_size, seq = config_.model.seq_length;
    const auto check = [&](i64 positions, const char* of) {
      if (positions * batch % block == 0) return;
      problems_.add(title(layer), positions, " consecutive positions of ", of, " x training.micro_batch_size ", batch,
                    " are not a multiple of the block size ", block,
                    "; blocks of tokens in weight gradients must not straddle ranks: change a size, or set wgrad = "
                    "\"bf16\" in a table of training.low_precision");
    };
    if (layout_.cp > 1)
      check(SamplePartition::zigzag(setup_.partition, seq).chunk() / setup_.partition.heads, "a context-parallel rank");
    const bool has_own_rows = layout_.tp > 1 && layout_.sequence_parallel && layer.is_whole();
    if (has_own_rows) check(seq / layout_.cp / layout_.tp, "a sequence-parallel rank");
  }

  /// Checks that ZeRO sends the weight of at least one linear layer in fp8.
  void check_param_gather() {
    const auto is_sent_in_fp8 = [&](const LinearLayer& layer) {
      const PassRecipes* recipe = layer.recipe(fp8_);
      const i64 columns = layer.box.shape.back();
      return recipe && rounds_weights_once(*recipe) &&
             WeightBlocks{.columns = columns, .block = weight_blocks(recipe->forward, Contraction::Columns)}.can_pack();
    };
    if (std::ranges::none_of(layers_, is_sent_in_fp8))
      problems_.add(
          "parallel.fp8_param_gather: no linear layer has the recipe \"tensorwise\", or \"blockwise\" with a multiple "
          "of ",
          kPackedBlock, " input features, in forward and dgrad; remove it");
  }

  const Config& config_;
  Layout layout_;
  ActivationSetup setup_;
  Fp8Layers fp8_;
  std::vector<LinearLayer> layers_;
  Problems problems_;
};

/// Returns the bytes of scales per element of a matrix.
double scale_bytes_per_element(GemmRecipe recipe) {
  if (!has_blocks(recipe)) return 0;
  return (recipe == GemmRecipe::Blockwise ? 4.0 : 1.0) / real(block_size(recipe));
}

/// Returns the bytes of workspace of c [m, n] = a [m, k] b [k, n] on a GPU that emulates block-scaled recipes.
/// `is_transformed` states that the random Hadamard transform is applied to the operands.
double workspace_bytes(GemmRecipe recipe, double m, double n, double k, bool is_transformed) {
  if (recipe == GemmRecipe::Bf16) return 0;
  const double operands = m * k + n * k, code_bytes = recipe == GemmRecipe::Nvfp4 ? 0.5 : 1;
  double per_element = code_bytes + scale_bytes_per_element(recipe);
  if (has_blocks(recipe)) per_element += real(size_of(DType::BF16));
  if (is_transformed) per_element += real(size_of(DType::BF16));
  return operands * per_element + (recipe == GemmRecipe::Nvfp4 ? m * n * real(size_of(DType::F32)) : 0);
}

std::string describe(const PassRecipes& recipe) {
  std::string text(enum_name(recipe.forward));
  if (recipe.dgrad != recipe.forward) text += str(", dgrad ", enum_name(recipe.dgrad));
  if (recipe.wgrad != recipe.forward) text += str(", wgrad ", enum_name(recipe.wgrad));
  if (recipe.gradients != Fp8Format::E4M3) text += str(", gradients in ", enum_name(recipe.gradients));
  return text;
}

/// Returns a line with the number of layers whose routed experts receive rows in fp8.
std::string describe_dispatch(const Config& config, const Fp8Layers& fp8) {
  std::set<std::string> tokens, gradients;
  for (const LinearLayer& layer : linear_layers(config.model)) {
    if (!receives_fp8(layer, fp8)) continue;
    (layer.name.ends_with("linear_fc1") ? tokens : gradients).insert(layer.name);
  }
  return str("  routed experts receive tokens of ", tokens.size(), " and gradients of ", gradients.size(),
             " layers in fp8\n");
}

}  // namespace

std::vector<std::string> low_precision_problems(const Config& config, int world_size) {
  if (!config.training.has_low_precision()) return {};
  return Checker(config, world_size).problems();
}

void check_low_precision(const Config& config, int world_size) {
  const std::vector<std::string> problems = low_precision_problems(config, world_size);
  check_input(problems.empty(), join(problems, "\n  "));
}

double low_precision_workspace_bytes(const Config& config, int world_size) {
  if (config.device.device != DeviceType::Cuda || !config.training.has_low_precision()) return 0;
  const Layout layout = layout_of(config, world_size);
  const Fp8Layers fp8 = fp8_layers(config);
  const double tokens = real(config.model.seq_length / layout.cp * layout.micro_batch_size);
  double largest = 0;
  for (const LinearLayer& layer : linear_layers(config.model, activation_setup(layout, DType::BF16))) {
    const PassRecipes* recipe = layer.recipe(fp8);
    if (!recipe || layer.is_expert) continue;
    const double in = real(layer.box.shape.back()), out = real(numel(layer.box.shape)) / in;
    for (const double bytes : {workspace_bytes(recipe->forward, tokens, out, in, false),
                               workspace_bytes(recipe->dgrad, tokens, in, out, false),
                               workspace_bytes(recipe->wgrad, out, in, tokens, recipe->wgrad == GemmRecipe::Nvfp4)})
      largest = std::max(largest, bytes);
  }
  return largest;
}

std::string describe_low_precision(const Config& config) {
  const Fp8Layers fp8 = fp8_layers(config);
  if (fp8.modules.empty()) return "";
  const std::vector<TableMembers> members = find_members(fp8, linear_layers(config.model));
  std::string text = "low precision:\n";
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::size_t count = members[i].layers.size();
    text += str("  ", join(fp8.modules[i].patterns, ", "), ": ", count,
                count == 1 ? " linear layer, " : " linear layers, ", describe(fp8.modules[i].recipe), "\n");
  }
  if (fp8.moe_fp8_dispatch) text += describe_dispatch(config, fp8);
  return text;
}

}  // namespace mcpp

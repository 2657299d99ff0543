#include "megatron_cpp/huggingface/weight_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "model/layers/moe/router.h"
#include "model/meta_model.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// Module of the model that a parameter belongs to.
enum class NamePlace : u8 {
  Model,            ///< outside of the layers
  Layer,            ///< a layer
  Prediction,       ///< a layer for multi-token prediction, outside of its block
  PredictionBlock,  ///< the block of a layer for multi-token prediction
};

/// Parts of the name of one of our parameters.
struct NameParts {
  NamePlace place = NamePlace::Model;
  i64 layer = 0;       ///< number of the layer; layers for multi-token prediction are numbered separately
  std::string module;  ///< name as in Counterpart::ours
  std::string suffix;  ///< ".weight" or ".bias"; empty for a bias of experts
};

NameParts parts_of(const std::string& name) {
  constexpr std::string_view kLayers = "decoder.layers.", kPrediction = "mtp.layers.", kBlock = "transformer_layer.";
  const bool has_suffix = name.ends_with(".weight") || name.ends_with(".bias");
  const std::size_t dot = has_suffix ? name.rfind('.') : name.size();
  NameParts parts{.module = name.substr(0, dot), .suffix = name.substr(dot)};
  const bool is_layer = name.starts_with(kLayers);
  if (!is_layer && !name.starts_with(kPrediction)) return parts;
  const std::size_t first = (is_layer ? kLayers : kPrediction).size(), end = name.find('.', first);
  parts.place = is_layer ? NamePlace::Layer : NamePlace::Prediction;
  parts.layer = std::stoll(name.substr(first, end - first));
  parts.module = name.substr(end + 1, dot - end - 1);
  if (is_layer) return parts;
  if (parts.module.starts_with(kBlock))
    parts.place = NamePlace::PredictionBlock, parts.module.erase(0, kBlock.size());
  else
    parts.module.insert(0, "mtp.");
  return parts;
}

/// Returns the number of the branch that stores a parameter of a layer for multi-token prediction
/// (PredictionForm::Branches).
i64 branch_of(const NameParts& name, const ModelConfig& model) {
  const i64 branches = std::max<i64>(static_cast<i64>(model.mtp_hybrid_layer_pattern.size()), 1);
  const bool is_last =
      name.module.starts_with("mlp.") || name.module == "pre_mlp_layernorm" || name.module == "mtp.final_layernorm";
  return name.layer * branches + (is_last ? branches - 1 : 0);
}

/// Returns the prefix of the foreign tensors of a parameter.
std::string prefix_of(const NameParts& name, const ModelConfig& model, const WeightNames& names) {
  if (name.place == NamePlace::Model) return std::string(names.base);
  if (name.place == NamePlace::Layer) return str(names.base, names.layers, name.layer, ".");
  if (names.prediction == PredictionForm::After)
    return str(names.base, names.layers, model.num_layers + name.layer, ".");
  if (names.prediction == PredictionForm::Branches) return str("mtp.layers.", branch_of(name, model), ".");
  if (names.prediction == PredictionForm::Megatron)
    return str("mtp.layers.", name.layer, name.place == NamePlace::Prediction ? "." : ".transformer_layer.");
  return name.place == NamePlace::Prediction ? "mtp." : str("mtp.layers.", name.layer, ".");
}

/// Returns the names of the copies of a parameter, the word embeddings or the output matrix, in layers for multi-token
/// prediction.
std::vector<std::string> copies_of(const std::string& module, const ModelConfig& model, const WeightNames& names) {
  std::vector<std::string> copies;
  if (names.prediction != PredictionForm::After) return copies;
  const bool is_embedding = module == "embedding.word_embeddings",
             is_output = module == "output_layer" || (is_embedding && !model.untie_embeddings_and_output_weights);
  for (i64 layer = model.num_layers; layer < model.num_blocks(); ++layer) {
    const std::string prefix = str(names.base, names.layers, layer, ".");
    if (is_embedding) copies.push_back(prefix + "embed_tokens.weight");
    if (is_output) copies.push_back(prefix + "shared_head.head.weight");
  }
  return copies;
}

Shape transposed(Shape shape) {
  std::swap(shape.at(0), shape.at(1));
  return shape;
}

/// Returns the shape with the first two axes merged.
Shape merged(Shape shape) {
  shape.at(1) *= shape.at(0);
  shape.erase(shape.begin());
  return shape;
}

/// Adds the row moves of queries, keys and values in three tensors with adjacent rotary pairs. In our parameter, the
/// two channels of a pair are half a head apart.
void add_paired_heads(WeightRule& rule, i64 dim) {
  const i64 groups = rule.shape[0],
            heads = rule.shape[1] / dim;  // heads of a group, including its key and its value head
  for (i64 i = 0; i < groups * heads; ++i) {
    const i64 group = i / heads, head = i % heads, row = i * dim;
    if (head == heads - 1) {
      rule.moves.push_back({2, group * dim, row, dim});
      continue;
    }
    const bool is_key = head == heads - 2;
    const i64 first = (is_key ? group : group * (heads - 2) + head) * dim;
    for (const i64 half : {0, 1})
      rule.moves.push_back({is_key ? 1u : 0u, first + half, row + half * (dim / 2), dim / 2, 2});
  }
}

/// Adds the row moves of a parameter [groups, rows, ...] whose groups consist of sections of `sizes` rows. Foreign
/// tensor i has `counts[i]` consecutive sections. If `by_group`, it has the sections of the first group, then the
/// sections of the second group, ...; otherwise it has the first section of all groups, then the second section of all
/// groups, ...
void add_sections(WeightRule& rule, const std::vector<i64>& sizes, const std::vector<std::size_t>& counts,
                  bool by_group) {
  const i64 groups = rule.shape[0], rows = rule.shape[1];
  auto first = sizes.begin();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto end = first + static_cast<std::ptrdiff_t>(counts[i]);
    const i64 width = std::accumulate(first, end, i64{0}), our_begin = std::accumulate(sizes.begin(), first, i64{0});
    rule.foreign[i].shape.assign(rule.shape.begin() + 1, rule.shape.end());
    rule.foreign[i].shape[0] = groups * width;
    for (i64 begin = 0; first != end; begin += *first++) {
      for (i64 g = 0; g < groups; ++g)
        rule.moves.push_back(
            {i, by_group ? g * width + begin : groups * begin + g * *first, g * rows + our_begin + begin, *first});
    }
  }
}

/// Changes foreign rows so that the rows of each query head are followed by space for the rows of its output gate.
void add_gates_to_queries(WeightRule& rule, i64 dim) {
  rule.foreign[0].shape[0] *= 2;
  for (RowMove& move : std::vector(std::exchange(rule.moves, {}))) {
    if (move.foreign != 0) {
      rule.moves.push_back(move);
      continue;
    }
    for (i64 row = 0; row < move.count; row += dim)
      rule.moves.push_back({0, 2 * (move.foreign_row + row), move.our_row + row, dim});
  }
}

/// Adds the row moves of output gates [heads * head_dim, h].
void make_head_gates(WeightRule& rule, i64 dim) {
  rule.foreign[0].shape = {2 * rule.shape[0], rule.shape[1]};
  for (i64 row = 0; row < rule.shape[0]; row += dim) rule.moves.push_back({0, 2 * row + dim, row, dim});
}

/// Adds the row moves of linear_qkv, [groups, (query heads of a group + 2) * head_dim, ...].
void make_qkv(WeightRule& rule, WeightConversion conversion, i64 dim) {
  const bool is_fused = rule.foreign.size() == 1;
  add_sections(rule, {rule.shape[1] - 2 * dim, dim, dim},
               is_fused ? std::vector<std::size_t>{3} : std::vector<std::size_t>{1, 1, 1}, /*by_group=*/false);
  ForeignTensor& first = rule.foreign[0];
  if (conversion == WeightConversion::QkvTransposed && first.shape.size() == 2)
    first.is_transposed = true, first.shape = transposed(first.shape);
  if (conversion == WeightConversion::QkvPairs) rule.moves.clear(), add_paired_heads(rule, dim);
  if (conversion == WeightConversion::QkvGated) add_gates_to_queries(rule, dim);
}

/// Adds the row moves of the input projection or the convolution of linear attention, [groups, width, h] or
/// [groups, conv_width, taps]. In Kimi Delta Attention, other parameters project to decays and output gates.
void make_mixer(WeightRule& rule, WeightConversion conversion, const ScanShape& scan) {
  const i64 values = scan.heads_per_group * scan.value_dim;
  std::vector<i64> sizes{scan.key_dim, scan.key_dim, values};
  const bool is_conv = rule.shape[1] == scan.conv_width();
  if (!is_conv && !scan.decays_channels()) sizes.insert(sizes.end(), {values, scan.heads_per_group});
  if (!is_conv) sizes.push_back(scan.heads_per_group);
  std::vector<std::size_t> counts(rule.foreign.size(), 1);
  counts[0] = sizes.size() - (counts.size() - 1);
  if (conversion == WeightConversion::MixerByGroup) counts = {4, 2};
  add_sections(rule, sizes, counts, conversion == WeightConversion::MixerByGroup);
  if (!is_conv) return;
  for (ForeignTensor& tensor : rule.foreign) tensor.shape.insert(tensor.shape.begin() + 1, 1);
}

/// Adds the row moves of `heads` heads, each with `plain` rows followed by `rotary` rows. The two channels that RoPE
/// rotates together are adjacent in the foreign tensor, and rotary / 2 rows apart in our parameter.
void make_interleaved(WeightRule& rule, i64 heads, i64 plain, i64 rotary) {
  rule.foreign[0].shape = rule.shape.size() == 3 ? merged(rule.shape) : rule.shape;
  for (i64 head = 0; head < heads; ++head) {
    const i64 row = head * (plain + rotary);
    rule.moves.push_back({0, row, row, plain});
    for (i64 i = 0; i < rotary; ++i)
      rule.moves.push_back({0, row + plain + i, row + plain + i / 2 + i % 2 * (rotary / 2), 1});
  }
}

/// Adds the row moves of gate and up, [2, ffn, ...].
void make_stacked(WeightRule& rule) {
  const Shape half(rule.shape.begin() + 1, rule.shape.end());
  for (std::size_t i = 0; i < rule.foreign.size(); ++i) {
    rule.foreign[i].shape = half;
    rule.moves.push_back({i, 0, static_cast<i64>(i) * half[0], half[0]});
  }
}

/// Adds the row moves of experts that are one parameter in our model and one tensor per expert (and per gate and up) in
/// the foreign model. Expands the tensor names of one expert to the names of all experts. `is_gated`: our parameter is
/// [experts, 2, out, ...].
void make_experts(WeightRule& rule, bool is_gated) {
  const std::vector<ForeignTensor> names = std::exchange(rule.foreign, {});
  const auto axes = static_cast<std::ptrdiff_t>(names.size() > 1 ? 2 : 1);  // experts, and tensors of each expert
  Shape shape(rule.shape.begin() + axes, rule.shape.end());
  if (names.size() == 1 && is_gated) shape = merged(shape);
  for (i64 expert = 0; expert < rule.shape[0]; ++expert) {
    for (ForeignTensor tensor : names) {
      tensor.name.replace(tensor.name.find('#'), 1, str(expert));
      tensor.shape = shape;
      const std::size_t index = rule.foreign.size();
      rule.moves.push_back({index, 0, static_cast<i64>(index) * shape[0], shape[0]});
      rule.foreign.push_back(std::move(tensor));
    }
  }
}

/// Adds the row moves of experts that are one tensor in both models. Our parameter is [experts, out, ...] or, with gate
/// and up, [experts, 2, out, ...].
void make_stored_experts(WeightRule& rule, bool is_bias, bool is_gated, bool is_interleaved) {
  ForeignTensor& theirs = rule.foreign[0];
  const i64 experts = rule.shape[0], halves = is_gated ? 2 : 1, out = rule.shape[is_gated ? 2 : 1];
  theirs.shape = is_bias ? Shape{experts, halves * out} : Shape{experts, rule.shape.back(), halves * out};
  theirs.is_vector = is_bias, theirs.is_transposed = !is_bias;
  for (i64 part = 0; part < experts * halves; ++part) {
    const i64 first = part / halves * halves * out, half = part % halves;
    if (is_interleaved)
      rule.moves.push_back({0, first + half, part * out, out, halves});
    else
      rule.moves.push_back({0, first + half * out, part * out, out});
  }
}

/// Adds the row moves of experts that are one tensor with the same order of rows (WeightConversion::ExpertRows).
void make_expert_rows(WeightRule& rule, bool is_bias, bool is_gated) {
  ForeignTensor& theirs = rule.foreign[0];
  theirs.shape = rule.shape;
  if (is_gated) theirs.shape.at(2) *= 2, theirs.shape.erase(theirs.shape.begin() + 1);
  theirs.is_vector = is_bias;
  rule.moves.push_back({0, 0, 0, numel(rule.shape) / theirs.columns()});
}

/// Adds the row moves of a parameter that equals one tensor with the same order of rows.
void make_rows(WeightRule& rule, WeightConversion conversion, const ModelConfig& model) {
  ForeignTensor& theirs = rule.foreign[0];
  theirs.shape = rule.shape;
  if (conversion == WeightConversion::Padded) theirs.shape[0] = model.vocab_size;
  if (conversion == WeightConversion::Flat) theirs.shape = merged(rule.shape);
  if (conversion == WeightConversion::HeadVector) theirs.shape = {1, 1, rule.shape[0], 1};
  rule.moves.push_back({0, 0, 0, conversion == WeightConversion::HeadVector ? rule.shape[0] : theirs.shape[0]});
  theirs.is_transposed = conversion == WeightConversion::Transposed && theirs.shape.size() == 2;
  if (theirs.is_transposed) theirs.shape = transposed(theirs.shape);
}

/// Adds the shapes of the foreign tensors and the row moves to a rule that has only names.
void add_moves(WeightRule& rule, WeightConversion conversion, const NameParts& name, const ModelConfig& model) {
  const bool has_gate = name.module.ends_with("linear_fc1") && model.is_gated();
  switch (conversion) {
    case WeightConversion::Experts:
    case WeightConversion::ExpertsInterleaved:
      return make_stored_experts(rule, name.suffix == ".bias", has_gate,
                                 conversion == WeightConversion::ExpertsInterleaved);
    case WeightConversion::ExpertRows:
      return make_expert_rows(rule, name.suffix == ".bias", has_gate);
    case WeightConversion::Qkv:
    case WeightConversion::QkvTransposed:
    case WeightConversion::QkvPairs:
    case WeightConversion::QkvGated:
      return make_qkv(rule, conversion, model.head_dim());
    case WeightConversion::HeadGates:
      return make_head_gates(rule, model.head_dim());
    case WeightConversion::MixerByGroup:
    case WeightConversion::MixerSections:
      return make_mixer(rule, conversion,
                        model.recurrent.linear_attention_shape(model.recurrent.linear_attention_type));
    case WeightConversion::Mamba:
      return add_mamba_rows(rule, model.recurrent.mamba_shape(model.hidden_size));
    case WeightConversion::LatentQueries:
      return make_interleaved(rule, rule.shape[0], model.mla.qk_head_dim, model.mla.qk_pos_emb_head_dim);
    case WeightConversion::Latents:
      return make_interleaved(rule, 1, model.mla.kv_lora_rank, model.mla.qk_pos_emb_head_dim);
    case WeightConversion::Stacked:
      return make_stacked(rule);
    case WeightConversion::PerExpert:
      return make_experts(rule, has_gate);
    default:
      return make_rows(rule, conversion, model);
  }
}

/// Copies a [rows, columns] block between two strided matrices. Elements have the size of T.
template <class T>
void move_block(const T* from, i64 from_row, i64 from_column, T* to, i64 to_row, i64 to_column, i64 rows, i64 columns) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < columns; ++c) to[r * to_row + c * to_column] = from[r * from_row + c * from_column];
  }
}

/// Calls f.template operator()<T>() with an unsigned integer of the size of the element type.
template <class F>
void on_bits(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 2:
      return f.template operator()<u16>();
    case 4:
      return f.template operator()<u32>();
    default:
      return f.template operator()<u64>();
  }
}

}  // namespace

WeightNames weight_names(const Family& family, std::string_view base) {
  return {.base = base,
          .layers = family.layers,
          .output = family.output,
          .prediction = family.traits.prediction,
          .counterparts = counterparts(family)};
}

std::vector<WeightRule> weight_map(const ModelConfig& model, const WeightNames& names,
                                   const std::function<void(const WeightRule&)>& check) {
  std::vector<WeightRule> rules;
  const auto add = [&](const std::string& ours, const Shape& shape, std::optional<DType> dtype) {
    const NameParts name = parts_of(ours);
    const auto it = std::ranges::find(names.counterparts, name.module, &Counterpart::ours);
    check_input(it != names.counterparts.end(), ours, " has no counterpart in this format");
    WeightRule rule{.name = ours,
                    .shape = shape,
                    .foreign = {},
                    .moves = {},
                    .dtype = dtype,
                    .copies = copies_of(name.module, model, names)};
    const std::string where = prefix_of(name, model, names);
    const bool is_stored_experts = it->conversion == WeightConversion::Experts ||
                                   it->conversion == WeightConversion::ExpertsInterleaved,
               is_bias = name.suffix == ".bias";
    const std::string suffix = !is_stored_experts ? name.suffix : is_bias ? "_bias" : "";
    for (const std::string_view theirs : it->theirs) rule.foreign.push_back({str(where, theirs, suffix), {}});
    if (name.module == "output_layer") rule.foreign.push_back({str(names.output, name.suffix), {}});
    add_moves(rule, it->conversion, name, model);
    if (check) check(rule);
    rules.push_back(std::move(rule));
  };
  visit_meta_params(model, [&](const Param& param) {
    add(param.name, param.box.global, {});
    const std::string bias = model.moe.router_enable_expert_bias ? expert_bias_name(param.name) : "";
    if (!bias.empty()) add(bias, {model.moe.num_experts}, DType::F32);
  });
  return rules;
}

Tensor gather_rows(const WeightRule& rule, const std::vector<Tensor>& foreign) {
  Tensor ours = Tensor::like(foreign[0], rule.shape);
  std::memset(ours.raw(), 0, static_cast<std::size_t>(ours.bytes()));
  const i64 columns = rule.columns();
  on_bits(ours.dtype(), [&]<class T>() {
    for (const RowMove& move : rule.moves) {
      const ForeignTensor& tensor = rule.foreign[move.foreign];
      const T* from = static_cast<const T*>(foreign[move.foreign].raw()) + tensor.offset(move.foreign_row);
      T* to = static_cast<T*>(ours.raw()) + move.our_row * columns;
      move_block(from, tensor.row_stride() * move.foreign_step, tensor.column_stride(), to, columns, 1, move.count,
                 columns);
    }
  });
  return ours;
}

bool is_buffer(const std::string& name) {
  for (const char* buffer :
       {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"})
    if (name.ends_with(buffer)) return true;
  return false;
}

void check_finite(const Tensor& values, const std::string& what) {
  check_input(std::isfinite(ops::sum_of_squares(values)), what, " has NaN or infinite values as ",
              name_of(values.dtype()), ": the model is unusable");
}

std::vector<ForeignParts> foreign_tensors(const std::vector<WeightRule>& rules) {
  std::vector<ForeignParts> tensors;
  std::map<std::string_view, std::size_t> positions;
  for (const WeightRule& rule : rules) {
    for (std::size_t i = 0; i < rule.foreign.size(); ++i) {
      const auto [at, is_new] = positions.emplace(rule.foreign[i].name, tensors.size());
      if (is_new) tensors.push_back({rule.foreign[i], {}});
      tensors[at->second].parts.push_back({&rule, i});
    }
    for (const std::string& copy : rule.copies) {
      tensors.push_back({rule.foreign[0], {{&rule, 0}}});
      tensors.back().tensor.name = copy;
    }
  }
  return tensors;
}

Tensor scatter_rows(const ForeignParts& foreign, const std::function<Tensor(const WeightRule& rule)>& ours) {
  Tensor result;
  for (const auto& [rule, index] : foreign.parts) {
    const Tensor source = ours(*rule);
    if (!result.defined()) result = Tensor::like(source, foreign.tensor.shape);
    const ForeignTensor& tensor = rule->foreign[index];
    const i64 columns = rule->columns();
    on_bits(source.dtype(), [&]<class T>() {
      for (const RowMove& move : rule->moves) {
        if (move.foreign != index) continue;
        const T* from = static_cast<const T*>(source.raw()) + move.our_row * columns;
        T* to = static_cast<T*>(result.raw()) + tensor.offset(move.foreign_row);
        move_block(from, columns, 1, to, tensor.row_stride() * move.foreign_step, tensor.column_stride(), move.count,
                   columns);
      }
    });
  }
  return result;
}

}  // namespace mcpp

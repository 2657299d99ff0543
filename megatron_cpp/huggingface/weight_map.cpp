#include "megatron_cpp/huggingface/weight_map.h"

#include <cstring>

namespace mcpp {
namespace {

class MapBuilder {
 public:
  MapBuilder(const ModelConfig& model, const std::function<void(const WeightRule&)>& check)
      : m_(model), check_(check) {}
  std::vector<WeightRule> take() { return std::move(rules_); }

  /// A matrix [out, in] or, without a second size, a vector.
  void add(const std::string& ours, const std::string& theirs, i64 out, i64 in = 0, bool transposed = false) {
    const Shape shape = in == 0 ? Shape{out} : Shape{out, in};
    push({ours, shape, {{theirs, transposed ? Shape{in, out} : shape, transposed}}, {{0, 0, 0, out}}});
  }

  /// A matrix with a row per token: ours is padded.
  void add_vocabulary(const std::string& ours, const std::string& theirs) {
    const Shape padded{m_.padded_vocab_size(), m_.hidden_size}, stored{m_.vocab_size, m_.hidden_size};
    push({ours, padded, {{theirs, stored}}, {{0, 0, 0, m_.vocab_size}}});
  }

  /// Weight or bias of linear_qkv: per group its query heads, its key, its value. GPT-2 has one tensor of all queries,
  /// all keys, all values; Llama a tensor of each.
  void add_qkv(const std::string& ours, std::vector<ForeignTensor> foreign, bool is_bias) {
    const i64 groups = m_.query_groups(), dim = m_.head_dim(), queries = m_.num_attention_heads / groups;
    const bool fused = foreign.size() == 1;
    WeightRule rule{ours, {groups, (queries + 2) * dim}, std::move(foreign), {}};
    if (!is_bias) rule.shape.push_back(m_.hidden_size);
    const i64 key_begin = fused ? groups * queries * dim : 0, value_begin = fused ? key_begin + groups * dim : 0;
    for (i64 g = 0; g < groups; ++g) {
      const i64 row = g * (queries + 2) * dim;
      rule.moves.push_back({0, g * queries * dim, row, queries * dim});
      rule.moves.push_back({fused ? 0u : 1u, key_begin + g * dim, row + queries * dim, dim});
      rule.moves.push_back({fused ? 0u : 2u, value_begin + g * dim, row + (queries + 1) * dim, dim});
    }
    push(std::move(rule));
  }

  /// Weight or bias of linear_fc1 of a gated MLP: [2, ffn, ...], gate then up.
  void add_gate_up(const std::string& ours, const std::string& gate, const std::string& up, bool is_bias) {
    const i64 f = m_.ffn();
    const Shape half = is_bias ? Shape{f} : Shape{f, m_.hidden_size};
    WeightRule rule{ours, half, {{gate, half}, {up, half}}, {{0, 0, 0, f}, {1, 0, f, f}}};
    rule.shape.insert(rule.shape.begin(), 2);
    push(std::move(rule));
  }

 private:
  void push(WeightRule rule) {
    if (check_) check_(rule);
    rules_.push_back(std::move(rule));
  }

  const ModelConfig& m_;
  const std::function<void(const WeightRule&)>& check_;
  std::vector<WeightRule> rules_;
};

void add_gpt2_layer(MapBuilder& map, const ModelConfig& m, const std::string& ours, const std::string& theirs) {
  const i64 h = m.hidden_size, f = m.ffn();
  for (const bool is_bias : {false, true}) {
    const std::string suffix = is_bias ? "bias" : "weight";
    // Conv1D stores its matrix as [in, out].
    const auto linear = [&](const std::string& our_name, const std::string& name, i64 out, i64 in) {
      map.add(ours + our_name + suffix, theirs + name + suffix, out, is_bias ? 0 : in, !is_bias);
    };
    map.add(ours + "input_layernorm." + suffix, theirs + "ln_1." + suffix, h);
    map.add_qkv(ours + "self_attention.linear_qkv." + suffix,
                {{theirs + "attn.c_attn." + suffix, is_bias ? Shape{3 * h} : Shape{h, 3 * h}, !is_bias}}, is_bias);
    linear("self_attention.linear_proj.", "attn.c_proj.", h, h);
    map.add(ours + "pre_mlp_layernorm." + suffix, theirs + "ln_2." + suffix, h);
    linear("mlp.linear_fc1.", "mlp.c_fc.", f, h);
    linear("mlp.linear_fc2.", "mlp.c_proj.", h, f);
  }
}

void add_llama_layer(MapBuilder& map, const ModelConfig& m, const std::string& ours, const std::string& theirs) {
  const i64 h = m.hidden_size, f = m.ffn();
  const i64 queries = m.num_attention_heads * m.head_dim(), keys = m.query_groups() * m.head_dim();
  const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
  map.add(ours + "input_layernorm.weight", theirs + "input_layernorm.weight", h);
  map.add(ours + "pre_mlp_layernorm.weight", theirs + "post_attention_layernorm.weight", h);
  for (const bool is_bias : {false, true}) {
    const std::string suffix = is_bias ? "bias" : "weight";
    const auto shape = [&](i64 rows) { return is_bias ? Shape{rows} : Shape{rows, h}; };
    if (!is_bias || m.qkv_bias()) {
      map.add_qkv(ours + "self_attention.linear_qkv." + suffix,
                  {{attention + "q_proj." + suffix, shape(queries)},
                   {attention + "k_proj." + suffix, shape(keys)},
                   {attention + "v_proj." + suffix, shape(keys)}},
                  is_bias);
    }
    if (!is_bias || m.attention_output_bias()) {
      map.add(ours + "self_attention.linear_proj." + suffix, attention + "o_proj." + suffix, h, is_bias ? 0 : queries);
    }
    if (is_bias && !m.mlp_bias()) continue;
    map.add_gate_up(ours + "mlp.linear_fc1." + suffix, mlp + "gate_proj." + suffix, mlp + "up_proj." + suffix, is_bias);
    map.add(ours + "mlp.linear_fc2." + suffix, mlp + "down_proj." + suffix, h, is_bias ? 0 : f);
  }
}

/// Copies a [rows, columns] block between two strided matrices of elements of T's size, whatever they mean.
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

std::vector<WeightRule> weight_map(const ModelConfig& m, const std::string& prefix,
                                   const std::function<void(const WeightRule&)>& check) {
  const bool is_gpt2 = huggingface_family(m) == HuggingfaceFamily::Gpt2;
  const std::string base = is_gpt2 ? prefix : "model.";
  MapBuilder map(m, check);
  map.add_vocabulary("embedding.word_embeddings.weight", base + (is_gpt2 ? "wte.weight" : "embed_tokens.weight"));
  if (is_gpt2) map.add("embedding.position_embeddings.weight", base + "wpe.weight", m.max_positions(), m.hidden_size);
  for (i64 layer = 0; layer < m.num_layers; ++layer) {
    const std::string ours = str("decoder.layers.", layer, ".");
    if (is_gpt2)
      add_gpt2_layer(map, m, ours, str(base, "h.", layer, "."));
    else
      add_llama_layer(map, m, ours, str(base, "layers.", layer, "."));
  }
  map.add("decoder.final_layernorm.weight", base + (is_gpt2 ? "ln_f.weight" : "norm.weight"), m.hidden_size);
  if (is_gpt2) map.add("decoder.final_layernorm.bias", base + "ln_f.bias", m.hidden_size);
  if (m.untie_embeddings_and_output_weights) map.add_vocabulary("output_layer.weight", "lm_head.weight");
  return map.take();
}

Tensor gather_rows(const WeightRule& rule, const std::vector<Tensor>& foreign) {
  Tensor ours = Tensor::like(foreign[0], rule.shape);
  std::memset(ours.raw(), 0, static_cast<std::size_t>(ours.bytes()));
  const i64 columns = rule.columns();
  on_bits(ours.dtype(), [&]<class T>() {
    for (const RowMove& move : rule.moves) {
      const ForeignTensor& tensor = rule.foreign[move.foreign];
      const T* from = static_cast<const T*>(foreign[move.foreign].raw()) + move.foreign_row * tensor.row_stride();
      T* to = static_cast<T*>(ours.raw()) + move.our_row * columns;
      move_block(from, tensor.row_stride(), tensor.column_stride(), to, columns, 1, move.count, columns);
    }
  });
  return ours;
}

Tensor scatter_rows(const WeightRule& rule, std::size_t index, const Tensor& ours) {
  const ForeignTensor& tensor = rule.foreign[index];
  Tensor foreign = Tensor::like(ours, tensor.shape);
  const i64 columns = rule.columns();
  on_bits(ours.dtype(), [&]<class T>() {
    for (const RowMove& move : rule.moves) {
      if (move.foreign != index) continue;
      const T* from = static_cast<const T*>(ours.raw()) + move.our_row * columns;
      T* to = static_cast<T*>(foreign.raw()) + move.foreign_row * tensor.row_stride();
      move_block(from, columns, 1, to, tensor.row_stride(), tensor.column_stride(), move.count, columns);
    }
  });
  return foreign;
}

}  // namespace mcpp

// Rates that `megatron_cpp plan calibrate` measures on a machine for which tiles and memory bandwidth are no good
// model, such as a CPU with caches. Rates are per rank while all ranks of the machine are busy.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "base/fields.h"
#include "plan/hardware/product_shape.h"

namespace mcpp {

/// Measured rates for one precision. An empty `sizes` means that nothing was measured.
struct MeasuredRates {
  std::vector<i64> sizes;
  std::vector<double> forward, input_gradient, weight_gradient;
  std::vector<i64> attention_lengths, attention_widths;
  std::vector<double> attention_forward, attention_backward;
  std::vector<double> norm_forward, norm_backward;
  std::vector<double> residual_forward, residual_backward;
  std::vector<double> activation_forward, activation_backward;
  double dropped_score_forward = 0, dropped_score_backward = 0;
  double bias_forward = 0, bias_backward = 0;
  double rope_forward = 0, rope_backward = 0;
  double loss = 0;
  double embedding_forward = 0, embedding_backward = 0;
  double update = 0;
  double gathered = 0, scattered = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("sizes", self.sizes, "rows, columns and depths of products that were measured", at_least(1));
    visit("forward", self.forward, "GFLOP/s of each [rows][columns][depth], x times a weight", greater_than(0));
    visit("input_gradient", self.input_gradient, "the same of the gradient of x", greater_than(0));
    visit("weight_gradient", self.weight_gradient, "the same of the gradient of the weight", greater_than(0));
    visit("attention_lengths", self.attention_lengths, "lengths of samples", at_least(1));
    visit("attention_widths", self.attention_widths, "widths of heads", at_least(1));
    visit("attention_forward", self.attention_forward, "GFLOP/s of causal attention, [length][width]", greater_than(0));
    visit("attention_backward", self.attention_backward, "the same backward", greater_than(0));
    visit("norm_forward", self.norm_forward, "ns of an element: LayerNorm, RMSNorm", at_least(0));
    visit("norm_backward", self.norm_backward, "the same backward", at_least(0));
    visit("residual_forward", self.residual_forward,
          "ns of an element of what adds a branch to the stream: without dropout, with", at_least(0));
    visit("residual_backward", self.residual_backward, "the same backward", at_least(0));
    visit("activation_forward", self.activation_forward,
          "ns of an element that it reads or writes: gelu, gelu_erf, swiglu, squared_relu, geglu", at_least(0));
    visit("activation_backward", self.activation_backward, "the same backward", at_least(0));
    visit("dropped_score_forward", self.dropped_score_forward,
          "ns that dropout adds to attention, of a query and a key that it sees", at_least(0));
    visit("dropped_score_backward", self.dropped_score_backward, "the same backward", at_least(0));
    visit("bias_forward", self.bias_forward, "ns of an element that a bias is added to", at_least(0));
    visit("bias_backward", self.bias_backward, "ns of an element of which a bias has its gradient", at_least(0));
    visit("rope_forward", self.rope_forward, "ns of an element of queries and keys that are rotated", at_least(0));
    visit("rope_backward", self.rope_backward, "the same backward", at_least(0));
    visit("loss", self.loss, "ns of a logit, forward and backward", at_least(0));
    visit("embedding_forward", self.embedding_forward, "ns of an element of the stream", at_least(0));
    visit("embedding_backward", self.embedding_backward, "the same backward", at_least(0));
    visit("update", self.update, "ns of a weight: the norm of gradients and AdamW", at_least(0));
    visit("gathered", self.gathered,
          "ns of a weight of a layer that ranks gather as it is needed, from and into cold memory; 0 = by the links",
          at_least(0));
    visit("scattered", self.scattered, "the same of a gradient that they sum up parts of", at_least(0));
  }

  bool has() const { return !sizes.empty(); }
  /// Appends an error "section.key: ..." for every list with the wrong number of elements.
  void add_conflicts(const std::string& section, std::vector<std::string>& errors) const;

  /// Returns seconds, interpolated between measured sizes on a logarithmic scale and clamped outside of them.
  double product_seconds(const ProductShape& shape, ProductPass pass) const;
  /// Returns FLOP/s.
  double attention_rate(i64 length, i64 width, bool is_backward) const;
};

}  // namespace mcpp

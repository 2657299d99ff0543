#include "plan/report/roofline.h"

#include <algorithm>

#include "base/integer_math.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "model/config/block_spec.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/layer_time.h"
#include "plan/cost/rank_cost_model.h"

namespace mcpp {
namespace {

class Roofline {
 public:
  explicit Roofline(const PredictionInput& input)
      : input_(input),
        rank_(input),
        model_(input.work.model),
        first_block_(block_spec(model_, 0)),
        tokens_(rank_.tokens()),
        element_(rank_.element_bytes()) {}

  std::vector<RooflineRow> rows() {
    for (const WeightMatmul& matmul : forward_matmuls(input_)) gemm(matmul.name, matmul.shape, matmul.type);
    attention();
    kernels();
    return std::move(rows_);
  }

 private:
  void gemm(const std::string& name, const MatmulShape& s, GemmType type) {
    const double bytes = operand_bytes(type) * real(s.batch) * (real(s.m) * real(s.k) + real(s.k) * real(s.n)) +
                         element_ * real(s.batch) * real(s.m) * real(s.n);
    rows_.push_back({.name = name,
                     .size = str(s.batch > 1 ? str(s.batch, " of ") : "", s.m, " x ", s.n, " x ", s.k),
                     .seconds = rank_.gemm_seconds(type, s, element_, GemmPass::Forward),
                     .flops = s.flops(),
                     .bytes = bytes});
  }

  /// Adds the attention of the first block, if it has one.
  void attention() {
    const BlockSpec mixer = mixer_of(first_block_);
    const OpRecord* op = find_forward(input_.trace(mixer), OpKind::Attention);
    if (!op) return;
    const AttentionShape& shape = op->attention;
    const double output = real(shape.queries * shape.batch * shape.query_heads * shape.value_dim);
    rows_.push_back({.name = "attention",
                     .size = str(model_.seq_length, " tokens"),
                     .seconds = layer_time(input_, mixer).forward.attention,
                     .flops = attention_flops(input_.work, shape),
                     .bytes = element_ * (shape.elements() + output)});
  }

  /// Returns the first op of this kind in forward, or null.
  static const OpRecord* find_forward(const BlockTrace& trace, OpKind kind) {
    const std::vector<OpRecord>& ops = trace.forward.ops;
    const auto it = std::ranges::find(ops, kind, &OpRecord::kind);
    return it == ops.end() ? nullptr : &*it;
  }

  /// Memory-bound kernels, with their passes over memory.
  void kernels() {
    const KernelTimes& t = rank_.kernels();
    const KernelTraits& p = input_.program;
    const double stream = rank_.stream_elements();
    add_kernel("norm", stream, t.norm.forward, p.norm.forward);
    add_kernel("residual", stream, t.residual.forward, p.residual.forward);
    add_kernel("embedding", stream, t.embedding.forward, 2);
    add_kernel("loss", find_forward(input_.output_trace(), OpKind::Loss)->elements, t.loss, p.loss);
    if (const OpRecord* activation = find_forward(input_.trace(feed_forward_of(first_block_)), OpKind::Activation))
      add_kernel("activation", activation->elements, t.activation.forward, p.activation.forward);
  }
  void add_kernel(const std::string& name, double elements, double seconds_per_element, double passes) {
    if (elements * seconds_per_element <= 0) return;
    rows_.push_back({.name = name,
                     .size = str(human_count(elements), " elements"),
                     .seconds = rank_.seconds(elements * seconds_per_element, 0),
                     .flops = 0,
                     .bytes = elements * passes * element_});
  }

  const PredictionInput& input_;
  const RankCostModel rank_;
  const ModelConfig& model_;
  const BlockSpec first_block_;
  i64 tokens_;
  double element_;
  std::vector<RooflineRow> rows_;
};

}  // namespace

std::vector<RooflineRow> roofline(const PredictionInput& input) {
  return Roofline(input).rows();
}

std::string roofline_text(const PredictionInput& input) {
  const double peak = input.hardware.peak_flops(input.work.gemms()), memory = 1 / input.hardware.traffic_seconds(1);
  const double ridge = input.hardware.gemm_flops(input.work.gemms()) / memory;
  std::string text =
      str("forward operations, below ", fixed(ridge, 0), " FLOP/byte memory-bound\n  ", pad_right("", 20),
          pad_left("", 26), pad_left("us", 10), pad_left("TFLOP/s", 9), pad_left("of peak", 9), pad_left("GB/s", 9),
          pad_left("of memory", 11), pad_left("FLOP/byte", 11), "\n");
  for (const RooflineRow& row : roofline(input)) {
    const double rate = row.flops / row.seconds, traffic = row.bytes / row.seconds;
    text += str("  ", pad_right(row.name, 20), pad_left(row.size, 26), pad_left(fixed(1e6 * row.seconds, 1), 10),
                pad_left(row.flops > 0 ? fixed(rate / 1e12, rate < 1e13 ? 2 : 0) : "", 9),
                pad_left(row.flops > 0 ? fixed(100 * rate / peak, 1) + " %" : "", 9),
                pad_left(fixed(traffic / 1e9, 0), 9), pad_left(fixed(100 * traffic / memory, 1) + " %", 11),
                pad_left(row.flops > 0 ? fixed(row.intensity(), 0) : "", 11),
                row.intensity() < ridge ? "  memory-bound" : "", "\n");
  }
  return text;
}

}  // namespace mcpp

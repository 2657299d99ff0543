#include "plan/layer_time.h"

#include <algorithm>

#include "model/flops.h"
#include "plan/products.h"

namespace mcpp {
namespace {

/// Attention over s keys loses as much as over so many more at full speed, and heads below 128 use the units less.
constexpr double kAttentionRamp = 340, kNarrowHeads = 0.72;
/// Operations of attention's backward pass, of those of its forward pass, and the speed of the one, of the other's.
constexpr double kBackwardWork = 2.5, kBackwardSpeed = 0.97;

double real(i64 n) {
  return static_cast<double>(n);
}

class Layer {
 public:
  explicit Layer(const Job& job)
      : hw_(job.hardware),
        program_(job.program),
        work_(job.work),
        model_(job.work.model),
        layout_(job.layout),
        collectives_(job.hardware),
        slow_(job.hardware.slowest(job.layout.world_size)),
        element_(real(size_of(job.work.dtype))),
        tokens_(model_.seq_length / layout_.cp * layout_.micro_batch_size),
        heads_(std::max<i64>(model_.num_attention_heads / layout_.tp, 1)),
        queries_(heads_ * model_.head_dim()),
        keys_(std::max<i64>(model_.query_groups() / layout_.tp, 1) * model_.head_dim()),
        ffn_(model_.ffn() / layout_.tp),
        up_((model_.gated() ? 2 : 1) * ffn_) {}

  UnitTime time() const {
    UnitTime t = products();
    t += attention();
    t += elementwise();
    t += tensor_parallel();
    t += context_parallel(t);
    keep_less(t);
    return t;
  }

  std::vector<std::pair<std::string, ProductShape>> shapes() const {
    const i64 hidden = model_.hidden_size;
    return {{"qkv", {.m = tokens_, .n = queries_ + 2 * keys_, .k = hidden}},
            {"proj", {.m = tokens_, .n = hidden, .k = queries_}},
            {"fc1", {.m = tokens_, .n = up_, .k = hidden}},
            {"fc2", {.m = tokens_, .n = hidden, .k = ffn_}}};
  }

  UnitTime embedding() const {
    UnitTime t;
    t.forward.elementwise = traffic(2 * stream(), 1);
    t.backward_weight.elementwise = traffic(3 * stream(), 1);
    t.forward.tensor_parallel = layout_.tp > 1 ? collectives_.all_reduce(whole_bytes(), layout_.tp_group()) : 0;
    return t;
  }

  UnitTime output() const {
    const i64 vocabulary = model_.padded_vocab_size() / layout_.tp, hidden = model_.hidden_size;
    const bool is_fp8 = work_.products == ProductType::Fp8;  // which logits are too fine for
    UnitTime t = product(vocabulary, hidden, is_fp8 ? ProductType::Bf16 : work_.products);
    const double logits = real(tokens_) * real(vocabulary);
    t.forward.elementwise = traffic(program_.loss / 2 * logits + program_.norm.forward * stream(), 3);
    t.backward_input.elementwise = traffic(program_.loss / 2 * logits + program_.norm.backward * stream(), 3);
    if (layout_.tp > 1) {
      const double gather = collectives_.all_gather(whole_bytes(), layout_.tp_group());
      t.forward.tensor_parallel = layout_.sequence_parallel ? gather : 0;
      t.backward_input.tensor_parallel = 2 * gather;
    }
    return t;
  }

 private:
  double stream() const {
    return real(tokens_ * model_.hidden_size) / (layout_.sequence_parallel ? real(layout_.tp) : 1);
  }
  double whole_bytes() const { return real(tokens_ * model_.hidden_size) * element_; }
  double traffic(double elements, double kernels) const {
    return slow_ * (hw_.traffic_seconds(elements * element_) + kernels * hw_.gap_seconds());
  }
  /// Of one weight [out, in].
  UnitTime product(i64 out, i64 in, ProductType type) const {
    const auto seconds = [&](const ProductShape& shape, double output_bytes) {
      return slow_ * product_seconds(hw_, type, shape, output_bytes);
    };
    UnitTime t;
    t.forward.products = seconds({.m = tokens_, .n = out, .k = in}, element_);
    t.backward_input.products = seconds({.m = tokens_, .n = in, .k = out}, element_);
    // Added to what is there, in the width in which gradients are kept.
    t.backward_weight.products = seconds({.m = out, .n = in, .k = tokens_}, program_.gradient_bytes);
    return t;
  }

  UnitTime products() const {
    UnitTime t;
    for (const auto& [name, shape] : shapes()) t += product(shape.n, shape.k, work_.products);
    return t;
  }

  UnitTime attention() const { return program_.stores_scores ? stored_scores() : flash_attention(); }

  UnitTime flash_attention() const {
    const double s = real(model_.seq_length);
    double seen = 0;
    for (i64 layer = 0; layer < model_.num_layers; ++layer) seen += seen_keys(model_, layer);
    const double flops = 4 * real(tokens_) * seen / real(model_.num_layers) * real(queries_);
    const double of_bf16 = work_.dtype == DType::F32 ? hw_.device.fp32_attained / hw_.device.bf16_attained : 1;
    const double rate = 1e12 * hw_.device.attention_attained * program_.attention * of_bf16 * s / (s + kAttentionRamp) *
                        (model_.head_dim() >= 128 ? 1 : kNarrowHeads);
    UnitTime t;
    t.forward.attention = slow_ * (flops / rate + hw_.gap_seconds());
    t.backward_input.attention = slow_ * (kBackwardWork * flops / (rate * kBackwardSpeed) + 2 * hw_.gap_seconds());
    return t;
  }

  /// Two products forward and four backward, of all keys, and sweeps over the scores between them.
  UnitTime stored_scores() const {
    const i64 s = model_.seq_length, d = model_.head_dim(), batch = heads_ * layout_.micro_batch_size;
    const auto one = [&](i64 n, i64 k) {
      return slow_ * product_seconds(hw_, ProductType::Bf16, {.m = s, .n = n, .k = k, .batch = batch}, element_);
    };
    const double scores = real(batch) * real(s) * real(s);
    UnitTime t;
    t.forward.attention = one(s, d) + one(d, s) + traffic(program_.scores.forward * scores, 2);
    t.backward_input.attention = one(s, d) + 3 * one(d, s) + traffic(program_.scores.backward * scores, 2);
    return t;
  }

  double norms(double sweeps) const { return 2 * sweeps * stream(); }
  double activations(bool backward) const {
    const double least = backward ? 2 * real(up_) + real(ffn_) : real(up_ + ffn_);
    return real(tokens_) * least * (backward ? program_.activation.backward : program_.activation.forward);
  }

  UnitTime elementwise() const {
    const double qkv = real(tokens_) * real(queries_ + 2 * keys_), hidden = real(tokens_ * model_.hidden_size);
    double forward = norms(program_.norm.forward + program_.residual.forward) + program_.heads.forward * qkv;
    double backward = norms(program_.norm.backward + program_.residual.backward) + program_.heads.backward * qkv;
    if (work_.products == ProductType::Fp8) {
      const double ends = real(tokens_) * real(queries_ + ffn_);
      const double weights = real(model_.hidden_size) * real(2 * queries_ + 2 * keys_ + up_ + ffn_);
      forward += program_.quantise.forward * (2 * hidden + ends + weights);
      backward += program_.quantise.backward * (2 * hidden + qkv + real(tokens_ * up_));
    }
    UnitTime t;
    t.forward.elementwise = traffic(forward + activations(false), program_.kernels.forward);
    t.backward_input.elementwise = traffic(backward + activations(true), program_.kernels.backward);
    return t;
  }

  UnitTime tensor_parallel() const {
    UnitTime t;
    if (layout_.tp == 1) return t;
    if (!layout_.sequence_parallel) {
      const double sum = collectives_.all_reduce(whole_bytes(), layout_.tp_group());
      t.forward.tensor_parallel = t.backward_input.tensor_parallel = 2 * sum;
      return t;
    }
    const double gather = collectives_.all_gather(whole_bytes(), layout_.tp_group());
    t.forward.tensor_parallel = 4 * gather;         // gather and reduce-scatter around attention and MLP
    t.backward_input.tensor_parallel = 6 * gather;  // and the two inputs gathered again for the weights' gradients
    return t;
  }

  UnitTime context_parallel(const UnitTime& sofar) const {
    UnitTime t;
    if (layout_.cp == 1) return t;
    const double keys = 2 * real(tokens_ * keys_) * element_, all = real(layout_.cp) * keys;
    const RankGroup group = layout_.cp_group();
    if (layout_.cp_comm_type == CpCommType::AllGather) {
      const double gather = collectives_.all_gather(all, group);
      t.forward.context_parallel = gather;
      t.backward_input.context_parallel = 2 * gather;
    } else if (layout_.cp_comm_type == CpCommType::P2p) {
      // Around the ring while what is there is computed.
      const double ring = real(layout_.cp - 1) * collectives_.message(keys, group.stride);
      t.forward.context_parallel = std::max(0.0, ring - sofar.forward.attention);
      t.backward_input.context_parallel = std::max(0.0, 2 * ring - sofar.backward_input.attention);
    } else {
      const double exchange = collectives_.all_to_all(real(tokens_) * real(2 * queries_ + 2 * keys_) * element_, group);
      t.forward.context_parallel = t.backward_input.context_parallel = exchange;
    }
    return t;
  }

  /// What selective recomputation adds.
  void keep_less(UnitTime& t) const {
    const Recompute& r = layout_.recompute;
    if (r.granularity != Recompute::Granularity::Selective) return;
    PassTime again;
    if (r.core_attn) again.attention = t.forward.attention;
    if (r.layernorm) again.elementwise += traffic(norms(program_.norm.forward), 2);
    if (r.mlp_act) again.elementwise += traffic(activations(false), 1);
    if (program_.recomputed_products > 0) {
      again.products = program_.recomputed_products * t.forward.products;
      again.elementwise = t.forward.elementwise;
    }
    t.backward_input += again;
  }

  const Hardware& hw_;
  const Implementation& program_;
  const Workload& work_;
  const ModelConfig& model_;
  const Layout& layout_;
  Collectives collectives_;
  double slow_, element_;
  i64 tokens_, heads_, queries_, keys_, ffn_, up_;
};

}  // namespace

PassTime& PassTime::operator+=(const PassTime& other) {
  products += other.products;
  attention += other.attention;
  elementwise += other.elementwise;
  tensor_parallel += other.tensor_parallel;
  context_parallel += other.context_parallel;
  data_parallel += other.data_parallel;
  return *this;
}

PassTime PassTime::operator*(double factor) const {
  return {.products = factor * products,
          .attention = factor * attention,
          .elementwise = factor * elementwise,
          .tensor_parallel = factor * tensor_parallel,
          .context_parallel = factor * context_parallel,
          .data_parallel = factor * data_parallel};
}

PassTime UnitTime::total() const {
  PassTime sum = forward;
  sum += backward_input;
  sum += backward_weight;
  return sum;
}

UnitTime& UnitTime::operator+=(const UnitTime& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  return *this;
}

UnitTime UnitTime::operator*(double factor) const {
  return {.forward = forward * factor,
          .backward_input = backward_input * factor,
          .backward_weight = backward_weight * factor};
}

UnitTime layer_time(const Job& job) {
  return Layer(job).time();
}

UnitTime recomputed(const UnitTime& layer) {
  UnitTime t = layer;
  t.backward_input += layer.forward;
  return t;
}

std::vector<std::pair<std::string, ProductShape>> layer_products(const Job& job) {
  return Layer(job).shapes();
}

UnitTime embedding_time(const Job& job) {
  return Layer(job).embedding();
}

UnitTime output_time(const Job& job) {
  return Layer(job).output();
}

}  // namespace mcpp

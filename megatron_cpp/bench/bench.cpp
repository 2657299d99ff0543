#include "megatron_cpp/bench/bench.h"

#include <algorithm>
#include <cmath>

#include "base/number_format.h"
#include "base/philox.h"
#include "base/statistics.h"
#include "model/block_trace.h"
#include "model/config/block_spec.h"
#include "model/flops.h"
#include "tensor/ops/groups.h"
#include "tensor/ops/scan/gated_scan.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {

namespace {

/// Times a GEMM with cold `b`, which holds weights or saved activations, and cold accumulators of main gradients.
double cold_gemm_seconds(const GemmCase& c, DType dtype, Device& device, const BenchTiming& timing) {
  const auto cold = [&](i64 rows, i64 columns, DType type, u64 key) {
    return ColdMatrices(random_tensor({std::max(rows * columns, kColdBytes / size_of(type))}, type, device, key));
  };
  const Tensor a = random_tensor(c.shape_of_a(), dtype, device, 1);
  const Shape b_shape = c.shape_of_b();
  ColdMatrices b = cold(b_shape[0], b_shape[1], dtype, 2), sums;
  Tensor out = Tensor::zeros({c.m, c.n}, c.output_type(dtype), device, MemoryClass::Workspace);
  if (c.is_output_fp32) sums = cold(c.m, c.n, DType::F32, 3);
  return median_seconds(timing, device, [&] {
    Tensor to = c.is_output_fp32 ? sums.next(c.m, c.n) : out;
    ops::matmul(a, b.next(b_shape[0], b_shape[1]), to, c.options);
  });
}

/// Measures the ops of one pass over [s, b] tokens by category.
class OpBench {
 public:
  OpBench(const ModelConfig& config, i64 batch, DType dtype, Device& device, const BenchTiming& timing)
      : config_(config),
        batch_(batch),
        tokens_(config.seq_length * batch),
        dtype_(dtype),
        device_(device),
        timing_(timing) {}

  std::vector<BenchRow> run() {
    norms();
    activations();
    experts();
    attention();
    recurrent();
    cross_entropy();
    optimizer();
    return std::move(rows_);
  }

 private:
  void add(const char* name, double flops, double bytes, const std::function<void()>& f) {
    rows_.push_back({.name = name, .seconds = median_seconds(timing_, device_, f), .flops = flops, .bytes = bytes});
  }
  Tensor random(const Shape& shape) { return random_tensor(shape, dtype_, device_, ++key_); }
  Tensor accumulate_dtype(i64 n) { return random_tensor({n}, DType::F32, device_, ++key_); }

  void norms() {
    const i64 h = config_.hidden_size;
    const Tensor x = random({config_.seq_length, batch_, h}), dy = random(x.shape()), w = random({h});
    Tensor y = Tensor::like(x), mean = accumulate_dtype(tokens_), rstd = accumulate_dtype(tokens_),
           dw = accumulate_dtype(h), db = accumulate_dtype(h);
    const double bytes = static_cast<double>(x.bytes());
    add("layer_norm", 0, 2 * bytes, [&] { ops::layer_norm(x, w, w, 1e-5, y, mean, rstd); });
    const NormForward forward{x, w, mean, rstd};
    NormGradients gradients{.dx = y, .add_to_dx = true, .dw = dw, .db = db};
    add("layer_norm_backward", 0, 4 * bytes, [&] { ops::layer_norm_backward(dy, forward, gradients); });
    add("rms_norm", 0, 2 * bytes, [&] { ops::rms_norm(x, w, 1e-5, y, rstd); });
    add("rms_norm_backward", 0, 4 * bytes, [&] { ops::rms_norm_backward(dy, forward, gradients); });
    add("bias_dropout_add", 0, 3 * bytes, [&] { ops::bias_dropout_add(x, &w, dy, {}, y); });
  }

  void activations() {
    const Activation kind = config_.is_gated() ? Activation::SwiGlu : Activation::Gelu;
    const Tensor up = random({tokens_, config_.max_ffn() * (config_.is_gated() ? 2 : 1)}),
                 dy = random({tokens_, config_.max_ffn()});
    Tensor y = Tensor::like(dy), dx = Tensor::like(up);
    const double in = static_cast<double>(up.bytes()), out = static_cast<double>(dy.bytes());
    add("activation", 0, in + out, [&] { ops::activation(kind, up, nullptr, y); });
    add("activation_backward", 0, 2 * in + out, [&] { ops::activation_backward(kind, dy, up, nullptr, dx); });
  }

  /// Measures the first grouped GEMM, and its gradients, of 8 experts that are as wide as the model's MLP. For
  /// comparison, also measures one GEMM with the same number of tokens and an eighth of the weights, and a sequence of
  /// GEMMs with one per expert.
  void experts() {
    constexpr i64 kExperts = 8;
    const i64 h = config_.hidden_size, f = config_.max_ffn();
    const Tensor x = random({tokens_, h}), w = random({kExperts, f, h});
    Tensor y = random({tokens_, f}), dx = Tensor::like(x),
           dw = Tensor::zeros({kExperts, f, h}, DType::F32, device_, MemoryClass::Workspace);
    const std::vector<i64> one{tokens_};
    std::vector<i64> even(kExperts, tokens_ / kExperts), uneven(kExperts);
    even[0] += tokens_ % kExperts;
    for (i64 g = 0, left = tokens_; g < kExperts; left -= uneven[static_cast<std::size_t>(g++)])
      uneven[static_cast<std::size_t>(g)] = g + 1 < kExperts ? left * 3 / 8 : left;
    const double flops = 2 * static_cast<double>(tokens_) * static_cast<double>(h * f);
    const auto by_expert = [&](const std::vector<i64>& rows, const auto& multiply) {
      for_each_group(rows, [&](i64 g, i64 first, i64 count) {
        multiply(g, [=](const Tensor& t) { return t.slice(first, first + count); });
      });
    };
    const auto matrix = [=](const Tensor& t, i64 g) { return t.slice(g, g + 1).view({f, h}); };
    const auto forward = [&](i64 g, const auto& own) {
      Tensor out = own(y);
      ops::matmul(own(x), matrix(w, g), out, {.transpose_b = true});
    };
    const auto dgrad = [&](i64 g, const auto& own) {
      Tensor out = own(dx);
      ops::matmul(own(y), matrix(w, g), out, {});
    };
    const auto wgrad = [&](i64 g, const auto& own) {
      Tensor out = matrix(dw, g);
      ops::matmul(own(y), own(x), out, {.transpose_a = true, .beta = 1});
    };
    add("matmul", flops, 0, [&] { by_expert(one, forward); });
    add("matmul by expert", flops, 0, [&] { by_expert(even, forward); });
    add("grouped_matmul", flops, 0, [&] { ops::grouped_matmul(x, w, even, y, true); });
    add("grouped_matmul, uneven", flops, 0, [&] { ops::grouped_matmul(x, w, uneven, y, true); });
    add("matmul dgrad", flops, 0, [&] { by_expert(one, dgrad); });
    add("matmul by expert dgrad", flops, 0, [&] { by_expert(even, dgrad); });
    add("grouped_matmul dgrad", flops, 0, [&] { ops::grouped_matmul(y, w, even, dx, false); });
    add("matmul wgrad", flops, 0, [&] { by_expert(one, wgrad); });
    add("matmul by expert wgrad", flops, 0, [&] { by_expert(even, wgrad); });
    add("grouped_weight_gradient", flops, 0, [&] { ops::grouped_weight_gradient(y, x, even, dw, 1); });
  }

  /// Measures the recurrent mixer of the first layer with such a mixer.
  void recurrent() {
    const BlockKinds blocks(config_);
    const auto it = std::ranges::find_if(blocks.kinds, [](const BlockSpec& block) { return block.recurrent(); });
    if (it == blocks.kinds.end()) return;
    const ScanShape& shape = it->recurrent()->shape;
    const i64 s = config_.seq_length, heads = shape.heads();
    const Tensor p = random({s, batch_, shape.groups * shape.width()}),
                 dy = random({s, batch_, heads * shape.value_dim});
    Tensor x = random({s, batch_, shape.groups * shape.conv_width()}), y = Tensor::like(dy), dx = Tensor::like(x),
           dp = Tensor::like(p);
    const ConvParams conv{random({shape.groups, shape.conv_width(), it->recurrent()->conv_taps}), {}};
    const bool is_mamba = it->recurrent()->is_mamba();
    const ScanParams params{random({heads}), random({shape.decays()}), is_mamba ? random({heads}) : Tensor()};
    const Tensor w = random({is_mamba ? heads * shape.value_dim : shape.value_dim});
    ScanParamGradients gradients{accumulate_dtype(batch_ * heads), accumulate_dtype(batch_ * shape.decays()),
                                 accumulate_dtype(batch_ * heads)};
    const double in = static_cast<double>(x.bytes());
    add("short_conv", 0, 2 * in, [&] { ops::short_conv(shape, p, conv, {}, nullptr, x); });
    add("gated_scan", 0, 0, [&] { ops::gated_scan(shape, x, p, params, {}, nullptr, y); });
    add("gated_scan_backward", 0, 0, [&] { ops::gated_scan_backward(shape, dy, x, p, params, {}, dx, dp, gradients); });
    add("gated_norm", 0, 3 * static_cast<double>(dy.bytes()), [&] { ops::gated_norm(shape, dy, p, w, 1e-5, y); });
  }

  void attention() {
    const BlockSpec block = block_spec(config_, 0);
    if (!block.attention()) return;
    const i64 s = config_.seq_length, heads = block.attention()->num_heads,
              groups = block.attention()->num_query_groups, d = block.attention()->head_dim;
    const Tensor qkv = random({s, batch_, groups, heads / groups + 2, d}), d_qkv = Tensor::like(qkv),
                 d_out = random({s, batch_, heads * d});
    QkvHeads in = packed_heads(qkv), gradient = packed_heads(d_qkv);
    AttentionResult y{Tensor::like(d_out), accumulate_dtype(batch_ * heads * s)};
    AttentionOptions options;
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(d));
    options.window = block.attention()->window;
    const double gemm =
        2 * static_cast<double>(tokens_ * heads * d) * attended_keys(block.attention()->window, s);  // FLOPs of q k^T
    add("attention", 2 * gemm, 0, [&] { ops::attention(in, options, y); });
    add("attention_backward", 5 * gemm, 0, [&] { ops::attention_backward(d_out, in, y, options, gradient); });
  }

  void cross_entropy() {
    const i64 vocab = config_.padded_vocab_size();
    Tensor logits = random({tokens_, vocab}),
           targets = Tensor::zeros({tokens_}, DType::I32, device_, MemoryClass::Workspace);
    Tensor largest = accumulate_dtype(tokens_), sum_exp = accumulate_dtype(tokens_),
           target_logit = accumulate_dtype(tokens_);
    const double bytes = static_cast<double>(logits.bytes());
    add("cross_entropy_stats", 0, bytes,
        [&] { ops::cross_entropy_stats(logits, targets, 0, vocab, largest, sum_exp, target_logit); });
    add("cross_entropy_gradient", 0, 2 * bytes,
        [&] { ops::cross_entropy_gradient(logits, targets, 0, vocab, largest, 1, 0); });
  }

  void optimizer() {
    const i64 n = 16 << 20;
    Tensor master = accumulate_dtype(n), grad = accumulate_dtype(n), m = accumulate_dtype(n),
           v = Tensor::zeros({n}, DType::F32, device_, MemoryClass::Workspace);
    const double bytes = static_cast<double>(master.bytes());
    add("adamw, 16M parameters", 0, 7 * bytes, [&] { ops::adamw(master, m, v, grad, {.lr = 1e-3}, nullptr); });
    add("sum_of_squares, 16M", 0, bytes, [&] { ops::sum_of_squares(grad); });
  }

  const ModelConfig& config_;
  i64 batch_, tokens_;
  DType dtype_;
  Device& device_;
  BenchTiming timing_;
  u64 key_ = 0;
  std::vector<BenchRow> rows_;
};

}  // namespace

namespace {

/// Adds the GEMMs with weights in one pass through `count` layers. Combines equal GEMMs into one case.
void add_gemms(const OpTrace& pass, bool is_backward, i64 count, std::vector<GemmCase>& cases) {
  for (const OpRecord& op : pass.ops) {
    if (op.weight.empty()) continue;
    const char* kind = op.is_weight_gradient ? " wgrad" : is_backward ? " dgrad" : " forward";
    const MatmulShape& s = op.matmul;
    GemmCase gemm{short_weight_name(op.weight) + kind,
                  s.m,
                  s.n,
                  s.k,
                  {.transpose_a = op.is_weight_gradient, .transpose_b = !is_backward},
                  op.is_weight_gradient,
                  count * s.batch};
    const auto is_same = [&](const GemmCase& c) {
      return c.name == gemm.name && c.m == gemm.m && c.n == gemm.n && c.k == gemm.k;
    };
    const auto it = std::ranges::find_if(cases, is_same);
    it == cases.end() ? cases.push_back(std::move(gemm)) : void(it->count += gemm.count);
  }
}

}  // namespace

std::vector<GemmCase> step_gemms(const ModelConfig& config, i64 micro_batch_size, DType dtype) {
  const ActivationSetup setup{.dtype = dtype, .micro_batch_size = micro_batch_size};
  ModelMeasurements measured(config);
  std::vector<GemmCase> cases;
  const auto add = [&](const BlockTrace& trace, i64 count) {
    add_gemms(trace.forward, false, count, cases);
    add_gemms(trace.backward, true, count, cases);
  };
  const std::vector<i64> counts = measured.blocks.count(0, config.num_layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind)
    add(measured.traces.get(setup, measured.blocks.kinds[kind]), counts[kind]);
  add(measured.traces.output(setup, {}), 1);
  return cases;
}

std::vector<BenchRow> bench_gemms(const std::vector<GemmCase>& cases, DType dtype, Device& device,
                                  const BenchTiming& timing) {
  std::vector<BenchRow> rows;
  for (const GemmCase& c : cases)
    rows.push_back({.name = c.name,
                    .seconds = median(gemm_runs(c, dtype, device, timing)),
                    .cold_seconds = cold_gemm_seconds(c, dtype, device, timing),
                    .flops = c.flops(),
                    .count = c.count});
  return rows;
}

std::vector<BenchRow> bench_ops(const ModelConfig& config, i64 batch, DType dtype, Device& device,
                                const BenchTiming& timing) {
  return OpBench(config, batch, dtype, device, timing).run();
}

MicroBatch random_batch(const ModelContext& context, i64 micro_batch_size) {
  const ModelConfig& config = context.config;
  const auto random_tokens = [&](const char* stream) {
    std::vector<i32> values;
    const auto vocab = static_cast<u64>(config.vocab_size);
    for (i64 i = 0; i < config.seq_length * micro_batch_size; ++i)
      values.push_back(static_cast<i32>(philox_key(1, stream, static_cast<u64>(i)) % vocab));
    return integers(values, {config.seq_length, micro_batch_size}, context.device);
  };
  MicroBatch result{random_tokens("tokens"), random_tokens("targets"), {}};
  for (i64 b = 0; b < micro_batch_size; ++b) result.samples.push_back(b);
  for (i64 k = 0; k < config.mtp_num_layers; ++k)
    result.future.push_back({random_tokens("future tokens"), random_tokens("future targets")});
  return shard_microbatch(result, config, context.cp);
}

double copy_bandwidth(Device& device) {
  const i64 count = device.type() == DeviceType::Cuda ? 256 << 20 : 32 << 20;  // far larger than any cache
  const Tensor from = random_tensor({count}, DType::F32, device, 1);
  Tensor to = Tensor::like(from);
  const double seconds = median_seconds({.warmup = 1, .repeats = 5}, device, [&] { ops::copy(from, to); });
  return 2.0 * static_cast<double>(from.bytes()) / seconds;
}

/// Formats an estimated duration with three digits in one unit: "720 ms", "14.4 s", "2.50 h".
static std::string rough_duration(double seconds) {
  if (seconds < 1) return significant(1e3 * seconds, 3) + " ms";
  if (seconds < 120) return significant(seconds, 3) + " s";
  return seconds < 7200 ? significant(seconds / 60, 3) + " min" : significant(seconds / 3600, 3) + " h";
}

std::string describe_step_time(const Config& config, int world_size, Device& device) {
  // Fractions of the rate of large GEMMs that the README's measurements reach.
  constexpr double kGood = 0.8, kPoor = 0.4;
  const double peak = mfu_peak_flops(dtype_of(config.training.precision), config.device.allow_tf32, device);
  const double flops = flops_per_batch(config.model, config.batch_sizes().back().batch_size) / world_size;
  const double min_seconds = flops / peak;
  const TrainingEnd end = config.training_length();
  const double all_flops = flops_per_batch(config.model, end.samples) / world_size;
  std::string text = "time, on this host as it is now:\n";
  text += str("  GEMMs       ", fixed(peak / 1e9, 1), " GFLOP/s measured", world_size > 1 ? " per rank" : "", "\n");
  text += str("  a step                at least ", rough_duration(min_seconds),
              "; models reach 40 to 80 % of that rate: ", rough_duration(min_seconds / kGood), " to ",
              rough_duration(min_seconds / kPoor),
              world_size > 1 ? ", and more with the pipeline's bubble and communication" : "", "\n");
  text += str("  ", pad_right(str("all ", end.iterations, end.iterations == 1 ? " step" : " steps"), 22),
              rough_duration(all_flops / peak / kGood), " to ", rough_duration(all_flops / peak / kPoor), "\n");
  return text;
}

}  // namespace mcpp

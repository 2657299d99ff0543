#include "megatron_cpp/bench/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/integer_math.h"
#include "base/io/scratch_file.h"
#include "base/io/transfer_queue.h"
#include "base/machine.h"
#include "base/statistics.h"
#include "megatron_cpp/bench/bench.h"
#include "model/layers/mlp.h"
#include "tensor/dtype.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the best rate of the large GEMMs, in FLOP/s.
double best_rate(const MeasuredRates& rates) {
  return 1e9 * *std::ranges::max_element(rates.forward);
}

double min_memory_limit() {
  double minimum = 1e18;
  for (const MemoryLimit& limit : memory_limits()) minimum = std::min(minimum, static_cast<double>(limit.bytes));
  return minimum;
}

double copy_rate(CalibrationClock& clock) {
  const i64 count = 32 << 20;  // far larger than any cache, including shared caches
  const Tensor from = random_tensor({count}, DType::F32, clock.device(), 1);
  Tensor to = Tensor::like(from);
  return 2.0 * static_cast<double>(from.bytes()) / clock.measure_seconds([&] { ops::copy(from, to); });
}

DeviceRates device_rates(CalibrationClock& clock, const MeasuredRates& bf16, const MeasuredRates& fp32, int ranks) {
  const Device& device = clock.device();
  DeviceRates rates;
  rates.name = device_name(device);
  rates.cores = static_cast<const CpuDevice&>(device).threads();
  rates.bf16_peak = rates.bf16_attained = best_rate(bf16) / 1e12;
  rates.fp32_peak = rates.fp32_attained = best_rate(fp32) / 1e12;
  rates.attention_attained = std::min(rates.bf16_peak, *std::ranges::max_element(bf16.attention_forward) / 1e3);
  rates.memory = min_memory_limit() / 1e9 / ranks;
  rates.memory_bandwidth = rates.memory_attained = copy_rate(clock) / 1e9;
  rates.communication_cores = rates.cores;  // the CPU cores transfer the data
  Tensor small = Tensor::zeros({64}, DType::F32, clock.device());
  rates.kernel_gap = 1e6 * clock.measure_seconds([&] { ops::scale(small, 1); });
  rates.speed_spread = std::min(0.5, clock.rank_spread());
  return rates;
}

/// Returns pointers to all values of a section.
template <class Section>
std::vector<double*> value_pointers(Section& section) {
  std::vector<double*> all;
  const auto visit = [&]<class T>(const char*, T& value, const char*, const Constraint& = {}) {
    if constexpr (std::is_same_v<T, double>) all.push_back(&value);
    if constexpr (std::is_same_v<T, std::vector<double>>)
      for (double& each : value) all.push_back(&each);
  };
  Section::fields(section, visit);
  return all;
}

/// Rounds to four significant digits, which is the precision of the measurements.
double rounded(double value) {
  if (value == 0) return 0;
  const double digits = 3 - std::floor(std::log10(std::abs(value))), scale = std::pow(10, std::abs(digits));
  return digits > 0 ? std::round(value * scale) / scale : std::round(value / scale) * scale;
}

void round_all(Hardware& hardware) {
  Hardware::sections(hardware, [](const char*, auto& section) {
    for (double* number : value_pointers(section)) *number = rounded(*number);
  });
}

/// Returns the elementwise median of several rounds.
MeasuredRates typical_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes) {
  std::vector<MeasuredRates> rounds;
  for (int round = 0; round < sizes.rounds; ++round) rounds.push_back(measure_kernels(clock, dtype, sizes));
  MeasuredRates typical = rounds.front();
  const std::vector<double*> to = value_pointers(typical);
  std::vector<std::vector<double>> values(to.size());
  for (MeasuredRates& round : rounds)
    for (std::size_t i = 0; double* value : value_pointers(round)) values[i++].push_back(*value);
  for (std::size_t i = 0; i < to.size(); ++i) *to[i] = median(std::move(values[i]));
  return typical;
}

/// Measures latency with tiny messages and bandwidth with sums of large vectors.
LinkTiers links_of(CalibrationClock& clock, double copy_rate, i64 bytes) {
  Communicator& ranks = clock.ranks();
  LinkTiers links{
      .tier = {"machine"}, .ranks = {ranks.size()}, .bandwidth = {copy_rate}, .attained = {1}, .latency = {0}};
  if (ranks.size() == 1) return links;
  const auto sum = [&](i64 count) {
    Tensor vector = random_tensor({count}, DType::F32, clock.device(), 1);
    return clock.measure_collective_seconds([&] { ranks.all_reduce(vector, ReduceOp::Sum).wait(); });
  };
  const double n = ranks.size(), short_one = sum(ranks.size() * 16),
               long_one = sum(bytes / 4 / ranks.size() * ranks.size());
  links.bandwidth = {2 * (n - 1) / n * static_cast<double>(bytes) / std::max(long_one - short_one, 1e-9) / 1e9};
  links.latency = {1e6 * short_one / (2 * n)};
  return links;
}

}  // namespace

Hardware calibrate(Device& device, Communicator& ranks, int cores, const CalibrationSizes& sizes) {
  MCPP_CHECK(device.type() == DeviceType::Cpu, "calibration supports only CPU devices");
  constexpr const char* kFolder = "--offload_folder";
  if (!sizes.disk.empty())
    ScratchFile(sizes.disk, aligned_bytes(sizes.disk_bytes),
                kFolder);  // detects an unsuitable folder before measuring for minutes
  const int num_concurrent = std::clamp(cores / static_cast<const CpuDevice&>(device).threads(), 1, ranks.size());
  const std::unique_ptr<Communicator> concurrent_group =
      ranks.split(ranks.rank() < num_concurrent ? 0 : 1, ranks.rank());
  Hardware hardware;
  if (ranks.rank() < num_concurrent) {
    CalibrationClock clock(device, *concurrent_group, sizes.min_seconds);
    hardware.measured_bf16 = typical_kernels(clock, DType::BF16, sizes);
    hardware.measured_fp32 = typical_kernels(clock, DType::F32, sizes);
    hardware.device = device_rates(clock, hardware.measured_bf16, hardware.measured_fp32, ranks.size());
  }
  CalibrationClock clock(device, ranks, sizes.min_seconds);
  hardware.links = links_of(clock, hardware.device.memory_attained, sizes.message_bytes);
  hardware.host.cores = cores;
  if (!sizes.disk.empty())
    hardware.host.nvme_bandwidth = disk_bandwidth(clock, sizes.disk, sizes.disk_bytes, kFolder) / 1e9;
  round_all(hardware);
  return ranks.rank() == 0 ? hardware : Hardware();
}

namespace {

void transfer(TransferQueue& queue, const ScratchFile& file, FileTransfer::Kind kind, std::span<std::byte> memory) {
  const int error = queue.wait(queue.start(file.transfer(kind, 0, memory)));
  if (error != 0)
    file.throw_transfer_error(kind == FileTransfer::Kind::Read ? "read" : "write", error, "a measurement");
}

}  // namespace

double disk_bandwidth(CalibrationClock& clock, const Path& folder, i64 bytes, std::string_view key) {
  const ScratchFile file(folder, aligned_bytes(bytes), key);
  const AlignedBytes memory(aligned_bytes(bytes));
  std::memset(memory.bytes().data(), 0x5a, memory.bytes().size());
  const std::unique_ptr<TransferQueue> queue = make_transfer_queue();
  const double seconds = clock.measure_collective_seconds([&] {
    transfer(*queue, file, FileTransfer::Kind::Write, memory.bytes());
    transfer(*queue, file, FileTransfer::Kind::Read, memory.bytes());
  });
  return 2 * static_cast<double>(memory.bytes().size()) / seconds;
}

namespace {

constexpr double kNano = 1e9;

class KernelCalibration {
 public:
  KernelCalibration(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes)
      : clock_(clock), dtype_(dtype), sizes_(sizes) {}

  MeasuredRates run() {
    gemms();
    attention();
    norms_and_residuals();
    activations();
    heads();
    embedding_and_loss();
    update();
    layer_collectives();
    return std::move(rates_);
  }

 private:
  Tensor random(const Shape& shape) { return random_tensor(shape, dtype_, clock_.device(), ++key_); }
  Tensor random_accumulator(const Shape& shape) {
    return random_tensor(shape, accumulate_dtype(dtype_), clock_.device(), ++key_);
  }
  /// Returns nanoseconds per element.
  double ns_per_element(i64 elements, const std::function<void()>& f) {
    return kNano * clock_.measure_seconds(f) / real(elements);
  }

  void gemms() {
    rates_.sizes = sizes_.gemms;
    const i64 max_elements = sizes_.gemms.back() * sizes_.gemms.back();
    const auto many = [&](i64 element) { return Shape{std::max(max_elements, sizes_.cold_bytes / element)}; };
    in_ = random({max_elements}), out_ = random({max_elements});
    cold_ = ColdMatrices(random(many(size_of(dtype_))));
    sums_ = ColdMatrices(random_accumulator(many(size_of(accumulate_dtype(dtype_)))));
    for (const i64 m : sizes_.gemms)
      for (const i64 n : sizes_.gemms)
        for (const i64 k : sizes_.gemms) gemm(m, n, k);
    in_ = out_ = {}, cold_ = sums_ = {};
  }

  static Tensor matrix(const Tensor& values, i64 rows, i64 columns) {
    return values.flat(0, rows * columns).view({rows, columns});
  }

  /// Measures three [m, n] GEMMs of depth k; m and k are token counts where the planner's shapes have them. Operands
  /// are as warm or cold as in a step.
  void gemm(i64 m, i64 n, i64 k) {
    const double giga_flops = 2 * real(m) * real(n) * real(k) / kNano;
    const auto rate = [&](const std::function<void()>& f) { return giga_flops / clock_.measure_warm_seconds(f); };
    const Tensor x = matrix(in_, m, k), dy = matrix(in_, k, m);
    Tensor y = matrix(out_, m, n);
    rates_.forward.push_back(rate([&] { ops::matmul(x, cold_.next(n, k), y, {.transpose_b = true}); }));
    rates_.input_gradient.push_back(rate([&] { ops::matmul(x, cold_.next(k, n), y, {}); }));
    rates_.weight_gradient.push_back(rate([&] {
      Tensor sum = sums_.next(m, n);
      ops::matmul(dy, cold_.next(k, n), sum, {.transpose_a = true, .beta = 1});
    }));
  }

  struct AttentionSeconds {
    double forward = 0, backward = 0;
  };

  AttentionSeconds attention_seconds(i64 length, i64 heads, i64 width, float dropped) {
    const Tensor qkv = random({length, 1, heads, 3, width}), d_qkv = Tensor::like(qkv),
                 d_out = random({length, 1, heads * width});
    const QkvHeads in = packed_heads(qkv);
    QkvHeads gradient = packed_heads(d_qkv);
    AttentionResult y{Tensor::like(d_out), random_accumulator({heads * length})};
    AttentionOptions options;
    options.softmax_scale = 1 / std::sqrt(real(width));
    options.dropout = {.p = dropped, .key = 1, .samples = {0}};
    return {.forward = clock_.measure_seconds([&] { ops::attention(in, options, y); }),
            .backward = clock_.measure_seconds([&] { ops::attention_backward(d_out, in, y, options, gradient); })};
  }

  void attention() {
    rates_.attention_lengths = sizes_.lengths;
    rates_.attention_widths = sizes_.widths;
    const i64 heads = 4;
    for (const i64 length : sizes_.lengths) {
      for (const i64 width : sizes_.widths) {
        const AttentionSeconds t = attention_seconds(length, heads, width, 0);
        const double giga_flops = 4 * real(heads * width) * real(length) * real(length) / 2 / kNano;
        rates_.attention_forward.push_back(giga_flops / t.forward);
        rates_.attention_backward.push_back(2.5 * giga_flops / t.backward);
      }
    }
    const i64 length = sizes_.lengths[sizes_.lengths.size() / 2], width = sizes_.widths.front();
    const AttentionSeconds all = attention_seconds(length, heads, width, 0),
                           dropped = attention_seconds(length, heads, width, 0.1F);
    const double scores = real(heads) * real(length) * real(length) / 2;
    rates_.dropped_score_forward = kNano * std::max(0.0, dropped.forward - all.forward) / scores;
    rates_.dropped_score_backward = kNano * std::max(0.0, dropped.backward - all.backward) / scores;
  }

  /// Measures norms and residual additions.
  void norms_and_residuals() {
    const i64 tokens = sizes_.tokens, h = sizes_.width, n = tokens * h;
    const Tensor x = random({tokens, 1, h}), dy = random(x.shape()), w = random({h});
    Tensor y = Tensor::like(x), mean = random_accumulator({tokens}), rstd = random_accumulator({tokens}),
           dw = random_accumulator({h}), db = random_accumulator({h});
    NormGradients gradients{.dx = y, .add_to_dx = true, .dw = dw, .db = db};
    const NormForward with_mean{x, w, mean, rstd};
    rates_.norm_forward = {ns_per_element(n, [&] { ops::layer_norm(x, w, w, 1e-5, y, mean, rstd); }),
                           ns_per_element(n, [&] { ops::rms_norm(x, w, 1e-5, y, rstd); })};
    rates_.norm_backward = {ns_per_element(n, [&] { ops::layer_norm_backward(dy, with_mean, gradients); }),
                            ns_per_element(n, [&] { ops::rms_norm_backward(dy, with_mean, gradients); })};
    const Dropout drop{.p = 0.1F, .key = 1, .samples = {0}};
    rates_.residual_forward = {ns_per_element(n, [&] { ops::bias_dropout_add(x, &w, dy, {}, y); }),
                               ns_per_element(n, [&] { ops::bias_dropout_add(x, &w, dy, drop, y); })};
    rates_.residual_backward = {0, ns_per_element(n, [&] { ops::dropout(x, drop, y); })};
    Tensor rows = y.as_matrix();
    rates_.bias_forward = ns_per_element(n, [&] { ops::add_bias(rows, w); });
    rates_.bias_backward = ns_per_element(n, [&] { ops::column_sum(rows, db, 1); });
  }

  void activations() {
    const i64 tokens = sizes_.tokens, f = sizes_.width;
    for (std::size_t i = 0; i < EnumNames<ActivationFunction>::value.size(); ++i) {
      const Activation a = activation_of(static_cast<ActivationFunction>(i));
      const i64 up_width = is_gated(a) ? 2 * f : f;
      const Tensor up = random({tokens, up_width}), dy = random({tokens, f});
      Tensor y = Tensor::like(dy), dx = Tensor::like(up);
      rates_.activation_forward.push_back(
          ns_per_element(tokens * (up_width + f), [&] { ops::activation(a, up, nullptr, y); }));
      rates_.activation_backward.push_back(
          ns_per_element(tokens * (2 * up_width + f), [&] { ops::activation_backward(a, dy, up, nullptr, dx); }));
    }
  }

  void heads() {
    const i64 tokens = sizes_.tokens, d = 64, heads = sizes_.width / d;
    Tensor x = random({tokens, 1, heads * d}), cos = random_accumulator({tokens, d / 2}),
           sin = random_accumulator({tokens, d / 2});
    Heads view = dense_heads(x, heads);
    rates_.rope_forward = ns_per_element(x.numel(), [&] { ops::rope(view, cos, sin, {}, false); });
    rates_.rope_backward = ns_per_element(x.numel(), [&] { ops::rope(view, cos, sin, {}, true); });
  }

  /// Measures the embedding and the loss.
  void embedding_and_loss() {
    const i64 tokens = sizes_.tokens, h = sizes_.width, vocabulary = 16 * h;
    std::vector<i32> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<i32>(i * 7919 % static_cast<std::size_t>(vocabulary));
    Tensor targets = Tensor::empty({tokens}, DType::I32, clock_.device());
    write_values(ids, targets);
    const Tensor table = random({vocabulary, h});
    Tensor y = random({tokens, h}), d_table = random_accumulator({vocabulary, h}),
           logits = random({tokens, vocabulary});
    rates_.embedding_forward = ns_per_element(y.numel(), [&] { ops::embedding(targets, table, 0, y); });
    rates_.embedding_backward = ns_per_element(y.numel(), [&] { ops::embedding_backward(y, targets, 0, d_table, 1); });
    Tensor largest = random_accumulator({tokens}), sums = random_accumulator({tokens}),
           picked = random_accumulator({tokens});
    rates_.loss = ns_per_element(logits.numel(), [&] {
      ops::cross_entropy_stats(logits, targets, 0, vocabulary, largest, sums, picked);
      ops::cross_entropy_gradient(logits, targets, 0, vocabulary, largest, 1, 0);
    });
  }

  void update() {
    const i64 n = sizes_.weights;
    Tensor master = random_accumulator({n}), grad = random_accumulator({n}), m = random_accumulator({n}),
           v = Tensor::like(m), model = random({n});
    ops::fill_zero(v);
    Tensor sum = Tensor::zeros({1}, DType::F64, clock_.device());
    rates_.update = ns_per_element(n, [&] {
      ops::add_sum_of_squares(grad, sum);
      ops::adamw(master, m, v, grad, {.lr = 1e-3}, is_low_precision(dtype_) ? &model : nullptr);
    });
  }

  /// Measures collectives of one layer's weights, as ZeRO 3 uses them: source and destination are cold in all caches.
  void layer_collectives() {
    Communicator& ranks = clock_.ranks();
    if (ranks.size() == 1) return;
    const i64 n = sizes_.layer_weights / ranks.size() * ranks.size(), part = n / ranks.size();
    const auto nanoseconds = [&](DType dtype, const auto& send) {
      const i64 count = std::max(n, sizes_.cold_bytes / size_of(dtype));
      ColdMatrices full_tensors(random_tensor({count}, dtype, clock_.device(), ++key_));
      ColdMatrices parts(random_tensor({count}, dtype, clock_.device(), ++key_));
      return kNano / real(n) * clock_.measure_collective_seconds([&] {
        Tensor full = full_tensors.next(1, n).view({n}), shard = parts.next(1, part).view({part});
        send(full, shard);
      });
    };
    rates_.gathered = nanoseconds(dtype_, [&](Tensor& full, Tensor& shard) { ranks.all_gather(shard, full).wait(); });
    rates_.scattered = nanoseconds(accumulate_dtype(dtype_),
                                   [&](Tensor& full, Tensor& shard) { ranks.reduce_scatter(full, shard).wait(); });
  }

  CalibrationClock& clock_;
  DType dtype_;
  const CalibrationSizes& sizes_;
  u64 key_ = 0;
  Tensor in_, out_;           // for GEMMs of all sizes
  ColdMatrices cold_, sums_;  // for GEMMs of all sizes
  MeasuredRates rates_;
};

}  // namespace

double CalibrationClock::mean_over_ranks(double value) {
  Tensor sum = Tensor::empty({1}, DType::F64, device_);
  sum.data<double>()[0] = value;
  ranks_.all_reduce(sum, ReduceOp::Sum).wait();
  return sum.data<double>()[0] / ranks_.size();
}

double CalibrationClock::measure_seconds(const std::function<void()>& f) {
  f();
  return measure_warm_seconds(f);
}

double CalibrationClock::measure_warm_seconds(const std::function<void()>& f) {
  constexpr double kLong = 3;  // duration above which a cold first call is negligible
  const double first = seconds_of(device_, f);
  ranks_.barrier();
  const bool is_long = first > kLong * min_seconds_;
  int calls = is_long ? 1 : 0;
  double all = is_long ? first : 0;
  for (; calls == 0 || all < min_seconds_; ++calls) all += seconds_of(device_, f);
  all_ += all / calls;
  return mean_over_ranks(all / calls);
}

double CalibrationClock::measure_collective_seconds(const std::function<void()>& f) {
  constexpr int kRuns = 21;
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    ranks_.barrier();
    times.push_back(mean_over_ranks(seconds_of(device_, f)));
  }
  return median(std::move(times));
}

double CalibrationClock::rank_spread() {
  if (ranks_.size() == 1) return 0;
  const double mean = mean_over_ranks(all_), square = mean_over_ranks((all_ - mean) * (all_ - mean));
  return std::sqrt(square * ranks_.size() / (ranks_.size() - 1)) / mean;
}

MeasuredRates measure_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes) {
  return KernelCalibration(clock, dtype, sizes).run();
}

}  // namespace mcpp

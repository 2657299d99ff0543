// Hardware description of a cluster for the planner: devices, and the links between them by tier. Each file in
// configs/hardware/ describes one kind of cluster; megatron_cpp/config/hardware_file.h reads it.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/fields.h"
#include "base/types.h"
#include "tensor/gemm_recipe.h"
#include "tensor/op_trace.h"

namespace mcpp {

// Performance model of the training program: the number of times its kernels pass over memory, and the communication
// that overlaps with compute. Rates of GEMMs and attention are part of the hardware description. The defaults describe
// this program; plan/cost/implementation.h and tests describe other programs.

/// Number of times a tensor is read or written, in elements of the training precision.
struct MemoryPasses {
  double forward = 0, backward = 0;
};

struct KernelTraits {
  std::string_view name = "megatron_cpp";
  MemoryPasses norm{2,
                    4};  ///< passes over the residual stream, per norm; the backward pass adds to an existing gradient
  MemoryPasses residual{3, 1};    ///< passes over the residual stream to add a branch with its bias and dropout
  MemoryPasses heads{2, 2};       ///< passes over queries, keys and values: rotation and layout changes
  MemoryPasses activation{1, 1};  ///< passes, relative to the minimum
  double loss = 2;                ///< passes over the logits, forward and backward together
  MemoryPasses kernels{12, 20};   ///< kernels launched per layer, except GEMMs
  double attention = 1;           ///< speed of attention relative to the rate that the hardware attains
  bool stores_scores = false;     ///< attention stores its scores [s, s] in memory, in the training precision
  MemoryPasses scores{4.5, 5.5};  ///< passes over stored scores, for softmax and dropout
  // Operands of low-precision GEMMs.
  /// Passes to find the largest magnitude of a tensor: of inputs and weights in forward, and of output gradients in
  /// backward.
  MemoryPasses amax{1, 1};
  /// Bytes moved to encode an operand, relative to reading it in bf16 and writing its codes and scales once: inputs and
  /// weights in forward, and for each GEMM output gradients in backward.
  MemoryPasses encode{1, 1};
  double reencode = 1;  ///< the same for inputs and weights in backward; 0: their codes of the forward pass are kept
  /// Fraction of a layer's GEMMs that backward recomputes even if the layer is partly kept.
  double recomputed_gemms = 0;
  bool overlaps_data_parallel = true;  ///< gradients are reduced and weights gathered concurrently with compute
  /// Collectives within a layer overlap with the ops that are queued before their results are used.
  bool overlaps_within_layers = true;
  /// Memory passes over all gradients of a rank in each step, in fp32, except those of the reduction and the update: to
  /// clear and to scale them.
  double gradient_passes = 0;
  int gradient_bytes = 4;          ///< bytes per element of a gradient that is reduced across ranks
  bool scatters_messages = false;  ///< without sequence parallelism: messages between stages are sharded along tp
  // Handling of the weights of a layer in ZeRO 3.
  bool gathers_again_to_recompute = false;  ///< gathers once more between recomputation and backward
  bool gathers_each_tensor = false;         ///< gathers tensors one by one instead of all tensors of a layer together
  bool all_reduces_gradients = false;       ///< all-reduces instead of reduce-scatters: twice the volume
};

/// One of the three GEMMs of a weight. Tokens are the dimension m, except in WeightGradient, where they are k.
enum class GemmPass : u8 { Forward, InputGradient, WeightGradient };

// Rates measured by `megatron_cpp plan calibrate` on a host for which tiles and memory bandwidth are not a good model,
// such as a CPU with caches. Rates are per rank while all ranks of the host are busy.

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
    visit("sizes", self.sizes, "measured sizes of GEMMs, for rows, columns and depth", at_least(1));
    visit("forward", self.forward, "GFLOP/s of forward GEMMs (x times weight) by [rows][columns][depth]",
          greater_than(0));
    visit("input_gradient", self.input_gradient, "GFLOP/s of input gradients by [rows][columns][depth]",
          greater_than(0));
    visit("weight_gradient", self.weight_gradient, "GFLOP/s of weight gradients by [rows][columns][depth]",
          greater_than(0));
    visit("attention_lengths", self.attention_lengths, "measured sequence lengths of attention", at_least(1));
    visit("attention_widths", self.attention_widths, "measured head widths of attention", at_least(1));
    visit("attention_forward", self.attention_forward, "GFLOP/s of causal attention by [length][width], forward",
          greater_than(0));
    visit("attention_backward", self.attention_backward, "GFLOP/s of causal attention by [length][width], backward",
          greater_than(0));
    visit("norm_forward", self.norm_forward, "ns per element of LayerNorm and RMSNorm, forward", at_least(0));
    visit("norm_backward", self.norm_backward, "ns per element of LayerNorm and RMSNorm, backward", at_least(0));
    visit("residual_forward", self.residual_forward,
          "ns per element of the residual addition, [without, with] dropout, forward", at_least(0));
    visit("residual_backward", self.residual_backward,
          "ns per element of the residual addition, [without, with] dropout, backward", at_least(0));
    visit("activation_forward", self.activation_forward,
          "ns per element read or written by gelu, gelu_erf, swiglu, squared_relu, geglu, quick_geglu, forward",
          at_least(0));
    visit("activation_backward", self.activation_backward,
          "ns per element read or written by gelu, gelu_erf, swiglu, squared_relu, geglu, quick_geglu, backward",
          at_least(0));
    visit("dropped_score_forward", self.dropped_score_forward,
          "ns per visible query-key pair added by attention dropout, forward", at_least(0));
    visit("dropped_score_backward", self.dropped_score_backward,
          "ns per visible query-key pair added by attention dropout, backward", at_least(0));
    visit("bias_forward", self.bias_forward, "ns per element of a bias addition", at_least(0));
    visit("bias_backward", self.bias_backward, "ns per element of a bias gradient", at_least(0));
    visit("rope_forward", self.rope_forward, "ns per rotated element of queries and keys, forward", at_least(0));
    visit("rope_backward", self.rope_backward, "ns per rotated element of queries and keys, backward", at_least(0));
    visit("loss", self.loss, "ns per logit, forward and backward together", at_least(0));
    visit("embedding_forward", self.embedding_forward, "ns per element of the embedding's output, forward",
          at_least(0));
    visit("embedding_backward", self.embedding_backward, "ns per element of the embedding's output, backward",
          at_least(0));
    visit("update", self.update, "ns per weight for the gradient norm and the AdamW update", at_least(0));
    visit("gathered", self.gathered,
          "ns per weight of an all-gather of one layer, with cold caches; 0 = derived from the links", at_least(0));
    visit("scattered", self.scattered,
          "ns per gradient of a reduce-scatter of one layer, with cold caches; 0 = derived from the links",
          at_least(0));
  }

  bool has() const { return !sizes.empty(); }
  /// Appends an error "section.key: ..." for every list with the wrong number of elements.
  void add_conflicts(const std::string& section, std::vector<std::string>& errors) const;

  /// Returns the seconds of a GEMM, interpolated between measured sizes on a logarithmic scale and clamped outside of
  /// the measured range.
  double gemm_seconds(const MatmulShape& shape, GemmPass pass) const;
  /// Returns FLOP/s.
  double attention_rate(i64 length, i64 width, bool is_backward) const;
};

/// Operand precision of GEMMs. Sums are in fp32. Fp8 has one scale per tensor (recipes `tensorwise` and `delayed`).
enum class GemmType : u8 { Bf16, Fp8, Blockwise, Mxfp8, Nvfp4, Fp32 };
template <>
struct EnumNames<GemmType> {
  static constexpr std::array<std::string_view, 6> value{"bf16", "fp8", "blockwise", "mxfp8", "nvfp4", "fp32"};
};
/// Returns the precision of GEMMs with a recipe on devices that support it.
GemmType gemm_type_of(GemmRecipe recipe);
/// Returns the bytes of an element of an operand, including its share of the scales.
double operand_bytes(GemmType type);

// Valid range of every rate, in the units of the files. Values outside of this range are assumed to be typing errors.
inline constexpr double kMinRate = 1e-6, kMaxRate = 1e9, kMaxUnits = 1e7;

/// Rates of one device, in the units of the files: TFLOP/s, GB, GB/s, microseconds; G = 1e9.
struct DeviceRates {
  std::string name;
  double bf16_peak = 0, bf16_attained = 0;
  double fp8_peak = 0, fp8_attained = 0;
  double blockwise_peak = 0, blockwise_attained = 0;
  double mxfp8_peak = 0, mxfp8_attained = 0;
  double nvfp4_peak = 0, nvfp4_attained = 0;
  double fp32_peak = 0, fp32_attained = 0;
  double attention_attained = 0;
  i64 cores = 0;
  i64 tile_rows = 128, tile_columns = 256;
  double memory = 0, memory_bandwidth = 0, memory_attained = 0;
  double kernel_gap = 0;
  double speed_spread = 0;
  i64 communication_cores = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("name", self.name, "name of the device");
    visit("bf16_peak", self.bf16_peak, "dense TFLOP/s in bf16 or fp16 according to the data sheet",
          between(kMinRate, kMaxRate));
    visit("bf16_attained", self.bf16_attained, "measured TFLOP/s of large bf16 GEMMs of random values",
          between(kMinRate, kMaxRate));
    visit("fp8_peak", self.fp8_peak, "dense TFLOP/s in fp8 according to the data sheet; 0 = not supported",
          between(0, kMaxRate));
    visit("fp8_attained", self.fp8_attained,
          "measured TFLOP/s of large fp8 GEMMs with one scale per tensor; 0 = not measured: the same fraction of the "
          "peak as bf16",
          between(0, kMaxRate));
    visit("blockwise_peak", self.blockwise_peak,
          "dense TFLOP/s of fp8 GEMMs with the recipe blockwise; 0 = emulated in bf16", between(0, kMaxRate));
    visit("blockwise_attained", self.blockwise_attained,
          "measured TFLOP/s of large blockwise GEMMs; 0 = not measured: the same fraction of the peak as fp8",
          between(0, kMaxRate));
    visit("mxfp8_peak", self.mxfp8_peak, "dense TFLOP/s in MXFP8 according to the data sheet; 0 = emulated in bf16",
          between(0, kMaxRate));
    visit("mxfp8_attained", self.mxfp8_attained,
          "measured TFLOP/s of large MXFP8 GEMMs; 0 = not measured: the same fraction of the peak as fp8",
          between(0, kMaxRate));
    visit("nvfp4_peak", self.nvfp4_peak, "dense TFLOP/s in NVFP4 according to the data sheet; 0 = emulated in bf16",
          between(0, kMaxRate));
    visit("nvfp4_attained", self.nvfp4_attained,
          "measured TFLOP/s of large NVFP4 GEMMs; 0 = not measured: the same fraction of the peak as fp8",
          between(0, kMaxRate));
    visit("fp32_peak", self.fp32_peak, "dense TFLOP/s in fp32 according to the data sheet",
          between(kMinRate, kMaxRate));
    visit("fp32_attained", self.fp32_attained, "measured TFLOP/s of large fp32 GEMMs", between(kMinRate, kMaxRate));
    visit("attention_attained", self.attention_attained,
          "TFLOP/s of causal attention in bf16, head width 128, long sequences", between(kMinRate, kMaxRate));
    visit("cores", self.cores, "number of cores (multiprocessors), each computing one tile of a GEMM",
          between(1, kMaxUnits));
    visit("tile_rows", self.tile_rows, "rows of the tile that one core computes", between(1, kMaxUnits));
    visit("tile_columns", self.tile_columns, "columns of the tile that one core computes", between(1, kMaxUnits));
    visit("memory", self.memory, "device memory in GB", between(kMinRate, kMaxRate));
    visit("memory_bandwidth", self.memory_bandwidth, "GB/s of device memory according to the data sheet",
          between(kMinRate, kMaxRate));
    visit("memory_attained", self.memory_attained, "GB/s of device memory reached by a kernel over long vectors",
          between(kMinRate, kMaxRate));
    visit("kernel_gap", self.kernel_gap, "microseconds between two consecutive kernels", between(0, kMaxRate));
    visit("speed_spread", self.speed_spread,
          "relative standard deviation of device speed; a group is as fast as its slowest device", between(0, 0.5));
    visit("communication_cores", self.communication_cores,
          "cores that a collective occupies while it overlaps with compute", between(0, kMaxRate));
  }
};

/// Peak and attained rate of GEMMs of one precision.
template <class Number>
struct GemmRate {
  Number *peak, *attained;
};
/// Returns the GEMM rates of a device in the order of GemmType.
template <class Rates>
auto gemm_rates(Rates& d) {
  using Rate = GemmRate<std::remove_pointer_t<decltype(&d.bf16_peak)>>;
  return std::array<Rate, 6>{{{&d.bf16_peak, &d.bf16_attained},
                              {&d.fp8_peak, &d.fp8_attained},
                              {&d.blockwise_peak, &d.blockwise_attained},
                              {&d.mxfp8_peak, &d.mxfp8_attained},
                              {&d.nvfp4_peak, &d.nvfp4_attained},
                              {&d.fp32_peak, &d.fp32_attained}}};
}

/// Tiers of links, nearest first. All lists have one element per tier.
struct LinkTiers {
  std::vector<std::string> tier;
  std::vector<i64> ranks;
  std::vector<double> bandwidth, attained, latency;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("tier", self.tier, "names of the tiers, nearest first, such as nvlink, rack, pod");
    visit("ranks", self.ranks, "number of devices connected by each tier, each a multiple of the previous one",
          between(1, kMaxUnits));
    visit("bandwidth", self.bandwidth, "GB/s per device and direction while all devices send",
          between(kMinRate, kMaxRate));
    visit("attained", self.attained, "fraction of the bandwidth that large collectives reach", between(0.01, 1));
    visit("latency", self.latency, "latency of one ring step in microseconds", between(0, kMaxRate));
  }
};

struct HostRates {
  double memory = 0, memory_bandwidth = 0, link_bandwidth = 0, nvme_bandwidth = 0;
  i64 cores = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("memory", self.memory, "GB of host memory per device", between(0, kMaxRate));
    visit("memory_bandwidth", self.memory_bandwidth,
          "GB/s of host memory per device, for updates of offloaded states; 0 = unknown, no offloading",
          between(0, kMaxRate));
    visit("link_bandwidth", self.link_bandwidth, "GB/s per direction between a device and its host",
          between(0, kMaxRate));
    visit("nvme_bandwidth", self.nvme_bandwidth, "GB/s of local disks per device; 0 = none", between(0, kMaxRate));
    visit("cores", self.cores,
          "cores of a host whose ranks compute on its CPUs; more ranks than cores share them; 0 = each device has "
          "its own",
          between(0, kMaxRate));
  }
};

struct Hardware {
  DeviceRates device;
  LinkTiers links;
  HostRates host;
  MeasuredRates measured_bf16, measured_fp32;

  template <class Self, class Visitor>
  static void sections(Self& self, Visitor&& visit) {
    visit("device", self.device);
    visit("links", self.links);
    visit("host", self.host);
    visit("measured_bf16", self.measured_bf16);
    visit("measured_fp32", self.measured_fp32);
  }

  /// Returns every violated rule between fields, as "section.key: problem and allowed values".
  std::vector<std::string> conflicts() const;

  /// Returns the measured rates for this GEMM precision; nullptr if there are none.
  const MeasuredRates* measured(GemmType type) const;
  /// Returns true if the device multiplies operands in this precision. If not, recipes with blocks are emulated in
  /// bf16.
  bool has_gemms(GemmType type) const { return *rates_of(type).peak > 0; }
  /// Returns the attained FLOP/s: measured, or derived from the peak.
  double gemm_flops(GemmType type) const;
  bool has_attained_rate(GemmType type) const { return *rates_of(type).attained > 0; }
  double peak_flops(GemmType type) const { return 1e12 * *rates_of(type).peak; }
  double memory_bytes() const { return 1e9 * device.memory; }
  /// Returns the seconds to move `bytes` to or from device memory.
  double traffic_seconds(double bytes) const { return bytes / (1e9 * device.memory_attained); }
  double gap_seconds() const { return 1e-6 * device.kernel_gap; }
  /// Returns the expected slowdown of the slowest of `ranks` devices relative to a typical one, e.g. 1.04.
  double slowest_device_factor(i64 ranks) const;
  /// Returns how many of the `ranks` ranks of one host can compute concurrently. Returns `ranks` if host.cores is not
  /// set.
  double concurrent_ranks(i64 ranks) const;
  /// Returns the fraction of its speed that a device loses while it communicates.
  double communication_slowdown() const;

 private:
  GemmRate<const double> rates_of(GemmType type) const { return gemm_rates(device)[static_cast<std::size_t>(type)]; }
};

}  // namespace mcpp

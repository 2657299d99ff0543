// Hardware description of a cluster for the planner: its devices, and the links between them by tier. Each file of
// configs/hardware/ describes one kind of cluster; megatron_cpp/config/hardware_file.h reads it.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/types.h"
#include "tensor/dtype.h"

namespace mcpp {

// Performance model of the training program: how often its kernels pass over memory, and what communication overlaps
// with what. Matrix products and attention belong to the hardware. The defaults describe this program; tests describe
// others to compare predictions with published results.

/// Number of times a tensor is read or written, in elements of the training precision.
struct MemoryPasses {
  double forward = 0, backward = 0;
};

struct KernelTraits {
  MemoryPasses norm{2, 4};  ///< over the residual stream, for each of a layer's two norms; backward adds to a gradient
  MemoryPasses residual{3, 1};    ///< the residual stream again, for the addition of a branch with its bias and dropout
  MemoryPasses heads{2, 2};       ///< over queries, keys and values: rotation and layout changes
  MemoryPasses activation{1, 1};  ///< times the minimum
  double loss = 2;                ///< over the logits, forward and backward together
  MemoryPasses kernels{12, 20};   ///< kernels launched per layer, except products
  double attention = 1;           ///< speed of attention relative to the rate that the hardware attains
  bool stores_scores = false;     ///< attention stores its scores [s, s] in memory, in the training precision
  MemoryPasses scores{4.5, 5.5};  ///< over stored scores, for softmax and dropout
  /// fp8 products: passes to find scales and to round, over inputs and weights, and over output gradients.
  MemoryPasses quantize{2.5, 4};
  double requantize = 1.5;  ///< over inputs and weights again, in backward
  double recomputed_products =
      0;  ///< fraction of a layer's products that backward recomputes although the layer is partly kept
  bool overlaps_data_parallel = true;  ///< gradients are reduced and weights gathered concurrently with compute
  int gradient_bytes = 4;              ///< per element of a gradient that is reduced across ranks
  bool scatters_messages = false;      ///< between stages without sequence parallelism: each rank sends its shard
  // Handling of a layer's weights in ZeRO 3.
  bool gathers_again_to_recompute = false;  ///< gathers once more between recomputation and backward
  bool gathers_each_tensor = false;         ///< gathers tensors one after another instead of a whole layer
  bool all_reduces_gradients = false;       ///< all-reduces instead of reduce-scatters: twice the volume
};

// Shapes of a layer's matrix products.

/// Shape of `batch` products [m, k] x [k, n] -> [m, n].
struct ProductShape {
  i64 m = 1, n = 1, k = 1;
  i64 batch = 1;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
  }
};

/// One of the three products of a weight. Tokens are the dimension m, except in WeightGradient, where they are k.
enum class ProductPass : u8 { Forward, InputGradient, WeightGradient };

// Rates that `megatron_cpp plan calibrate` measures on a machine for which tiles and memory bandwidth are no good
// model, such as a CPU with caches. Rates are per rank while all ranks of the machine are busy.

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

/// Operand precision of matrix products. Sums are in fp32.
enum class ProductType : u8 { Bf16, Fp8, Fp32 };
template <>
struct EnumNames<ProductType> {
  static constexpr std::array<std::string_view, 3> value{"bf16", "fp8", "fp32"};
};

// Plausible range of every rate, in the units of the files; values outside are typing errors.
inline constexpr double kMinRate = 1e-6, kMaxRate = 1e9, kMaxUnits = 1e7;

/// Rates of one device, in the units of the files: TFLOP/s, GB, GB/s, microseconds; G = 1e9.
struct DeviceRates {
  std::string name;
  double bf16_peak = 0, bf16_attained = 0;
  double fp8_peak = 0, fp8_attained = 0;
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
    visit("name", self.name, "what it is called");
    visit("bf16_peak", self.bf16_peak, "TFLOP/s of products in bf16 or fp16 by the data sheet, dense",
          between(kMinRate, kMaxRate));
    visit("bf16_attained", self.bf16_attained, "TFLOP/s that large products of random numbers reach",
          between(kMinRate, kMaxRate));
    visit("fp8_peak", self.fp8_peak, "the same in fp8; 0 = it has none", between(0, kMaxRate));
    visit("fp8_attained", self.fp8_attained, "the same in fp8; 0 = it has none", between(0, kMaxRate));
    visit("fp32_peak", self.fp32_peak, "the same in fp32", between(kMinRate, kMaxRate));
    visit("fp32_attained", self.fp32_attained, "the same in fp32", between(kMinRate, kMaxRate));
    visit("attention_attained", self.attention_attained,
          "TFLOP/s of causal attention with heads of 128 and long sequences, in bf16", between(kMinRate, kMaxRate));
    visit("cores", self.cores, "units that compute tiles of a product at the same time", between(1, kMaxUnits));
    visit("tile_rows", self.tile_rows, "rows of the tile of a product that one of them computes",
          between(1, kMaxUnits));
    visit("tile_columns", self.tile_columns, "its columns", between(1, kMaxUnits));
    visit("memory", self.memory, "GB", between(kMinRate, kMaxRate));
    visit("memory_bandwidth", self.memory_bandwidth, "GB/s by the data sheet", between(kMinRate, kMaxRate));
    visit("memory_attained", self.memory_attained, "GB/s that a kernel over long vectors reaches",
          between(kMinRate, kMaxRate));
    visit("kernel_gap", self.kernel_gap, "microseconds from one kernel to the next", between(0, kMaxRate));
    visit("speed_spread", self.speed_spread,
          "standard deviation of the speed of such devices: the slowest of a group holds up all", between(0, 0.5));
    visit("communication_cores", self.communication_cores,
          "units that a collective takes from what is computed meanwhile", between(0, kMaxRate));
  }
};

/// Tiers of links, the nearest first. All lists have one element per tier.
struct LinkTiers {
  std::vector<std::string> tier;
  std::vector<i64> ranks;
  std::vector<double> bandwidth, attained, latency;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("tier", self.tier, "names, the nearest first: nvlink, rack, pod");
    visit("ranks", self.ranks, "devices that such links join, each a multiple of the one before",
          between(1, kMaxUnits));
    visit("bandwidth", self.bandwidth, "GB/s of one device in one direction, when all send",
          between(kMinRate, kMaxRate));
    visit("attained", self.attained, "the part of it that large collectives reach", between(0.01, 1));
    visit("latency", self.latency, "microseconds of one step of a ring", between(0, kMaxRate));
  }
};

struct HostRates {
  double memory = 0, memory_bandwidth = 0, link_bandwidth = 0, nvme_bandwidth = 0;
  i64 cores = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("memory", self.memory, "GB of the host's memory for each device", between(0, kMaxRate));
    visit("memory_bandwidth", self.memory_bandwidth,
          "GB/s of the host's memory for each device, at which states there are updated; 0 = not known, nothing is put "
          "there",
          between(0, kMaxRate));
    visit("link_bandwidth", self.link_bandwidth, "GB/s between a device and its host, one direction",
          between(0, kMaxRate));
    visit("nvme_bandwidth", self.nvme_bandwidth, "GB/s to local disks for each device; 0 = none", between(0, kMaxRate));
    visit("cores", self.cores,
          "of a machine whose ranks compute on its processors, and take turns when they are more; 0 = each device has "
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

  /// Returns every violated rule between fields, as "section.key: what is wrong and what is allowed".
  std::vector<std::string> conflicts() const;

  /// Returns the measured rates for this product precision; nullptr if there are none.
  const MeasuredRates* measured(ProductType type) const;
  double product_flops(ProductType type) const;  ///< attained FLOP/s
  double peak_flops(ProductType type) const;
  double memory_bytes() const { return 1e9 * device.memory; }
  /// Returns the seconds to move `bytes` to or from device memory.
  double traffic_seconds(double bytes) const { return bytes / (1e9 * device.memory_attained); }
  double gap_seconds() const { return 1e-6 * device.kernel_gap; }
  /// Returns the expected slowdown of the slowest of `ranks` devices relative to a typical one, e.g. 1.04.
  double slowest_device_factor(i64 ranks) const;
  /// Returns how many of `ranks` can compute at the same time on their machine: all of them without host.cores.
  double concurrent_ranks(i64 ranks) const;
  /// Returns the fraction of its speed that a device loses while it communicates.
  double communication_slowdown() const;
};

}  // namespace mcpp

// Hardware description of a cluster for the planner: its devices, and the links between them by tier. Each file of
// configs/hardware/ describes one kind of cluster; megatron_cpp/config/hardware_file.h reads it.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "plan/hardware/measured_rates.h"
#include "tensor/dtype.h"

namespace mcpp {

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

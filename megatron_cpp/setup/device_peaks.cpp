#include "megatron_cpp/setup/device_peaks.h"

#include <array>

namespace mcpp {
namespace {

struct Rating {
  std::string_view name;          ///< substring of the driver's name
  double bf16, tf32, fp32, fp64;  ///< dense TFLOP/s, without sparsity
};

/// The first match is used, so variants precede the plain name. "H200" also matches the GH200.
constexpr std::array kRatings{
    Rating{"H200 NVL", 835, 417.5, 60, 60},   Rating{"H200", 989.4, 494.7, 66.9, 66.9},
    Rating{"H100 PCIe", 756, 378, 51, 51},    Rating{"H100 NVL", 835, 417.5, 60, 60},
    Rating{"H100", 989.4, 494.7, 66.9, 66.9}, Rating{"A100", 311.8, 155.9, 19.5, 19.5},
};

}  // namespace

double rated_flops(std::string_view device_name, DType dtype, bool allow_tf32) {
  for (const Rating& rating : kRatings) {
    if (device_name.find(rating.name) == std::string_view::npos) continue;
    if (dtype == DType::F32) return 1e12 * (allow_tf32 ? rating.tf32 : rating.fp32);
    return 1e12 * (dtype == DType::F64 ? rating.fp64 : rating.bf16);
  }
  return 0;
}

}  // namespace mcpp

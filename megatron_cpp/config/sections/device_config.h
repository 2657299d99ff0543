// Device of a run: processor, threads and GPU options.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/strings.h"
#include "tensor/device.h"
#include "tensor/isa.h"

namespace mcpp {

template <>
struct EnumNames<DeviceType> {
  static constexpr std::array<std::string_view, 2> value{"cpu", "cuda"};
};

/// Selection of matrix product algorithms on a GPU.
enum class GemmTuning : u8 { Off, Time };
template <>
struct EnumNames<GemmTuning> {
  static constexpr std::array<std::string_view, 2> value{"off", "time"};
};

struct DeviceConfig {
  DeviceType device = DeviceType::Cpu;
  i64 num_threads = 0;
  CpuIsa cpu_isa = CpuIsa::Auto;
  GemmTuning gemm_tuning = GemmTuning::Off;
  std::string gemm_tuning_file;
  bool allow_tf32 = false;
  bool deterministic = true;
  bool gelu_epilogue = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("device", self.device, "where tensors live and ops run");
    visit("num_threads", self.num_threads, "threads of a rank on the CPU; 0 = all usable cores", between(0, 4096));
    visit("cpu_isa", self.cpu_isa, "highest instruction set used, so that unlike machines can give the same bits");
    visit(
        "gemm_tuning", self.gemm_tuning,
        "matrix products on a GPU: off = as gemm_tuning_file says, else the library's first proposal; time = what the "
        "file lacks is timed, and the fastest added to it");
    visit("gemm_tuning_file", self.gemm_tuning_file,
          "the algorithms of matrix products; with the same file a run has the same bits. Of another GPU or version of "
          "cuBLAS it says nothing");
    visit("allow_tf32", self.allow_tf32,
          "fp32 matrix products on a GPU round their factors to TF32, 10 bits of fraction; much faster");
    visit("deterministic", self.deterministic,
          "no kernel on a GPU that may give other bits the next time; false may be faster");
    visit(
        "gelu_epilogue", self.gelu_epilogue,
        "with model.activation_func gelu: cuBLASLt adds bias and GELU to the first product of an MLP, and the gradient "
        "of GELU to the second's; other bits, and not known to be faster");
  }

  /// Returns every violated rule between fields, as "device.key: what is wrong and what is allowed".
  std::vector<std::string> conflicts() const {
    std::vector<std::string> found;
    const auto require = [&](bool holds, const char* rule) {
      if (!holds) found.push_back(str("device.", rule));
    };
    const bool is_gpu = device == DeviceType::Cuda;
    require(!is_gpu || cpu_isa == CpuIsa::Auto, "cpu_isa: only read when device is \"cpu\"");
    require(is_gpu || gemm_tuning == GemmTuning::Off, "gemm_tuning: only read when device is \"cuda\"");
    require(is_gpu || gemm_tuning_file.empty(), "gemm_tuning_file: only read when device is \"cuda\"");
    require(is_gpu || !allow_tf32, "allow_tf32: only read when device is \"cuda\"");
    require(is_gpu || !gelu_epilogue, "gelu_epilogue: only read when device is \"cuda\"");
    require(is_gpu || deterministic, "deterministic: only read when device is \"cuda\"; the CPU always is");
    require(gemm_tuning == GemmTuning::Off || !gemm_tuning_file.empty(),
            "gemm_tuning: \"time\" needs gemm_tuning_file; without it the next run would have other bits");
    return found;
  }
};

}  // namespace mcpp

// Configuration of the device of a run: processor, threads and GPU options.
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

/// Selection of GEMM algorithms on a GPU.
enum class GemmTuning : u8 { Off, Time };
template <>
struct EnumNames<GemmTuning> {
  static constexpr std::array<std::string_view, 2> value{"off", "time"};
};

/// Implementation of CUDA graphs of training passes, with Megatron Core's names.
enum class CudaGraphImpl : u8 { None, Local };
template <>
struct EnumNames<CudaGraphImpl> {
  static constexpr std::array<std::string_view, 2> value{"none", "local"};
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
  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::None;
  i64 cuda_graph_warmup_steps = 3;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("device", self.device, "device that holds the tensors and runs the operations");
    visit("num_threads", self.num_threads, "CPU threads per rank; 0 = all usable cores", between(0, 4096));
    visit("cpu_isa", self.cpu_isa,
          "highest instruction set to use; set it to get bitwise identical results on different hosts");
    visit("gemm_tuning", self.gemm_tuning,
          "selection of GEMM algorithms on a GPU: off = use gemm_tuning_file, and the library's first proposal "
          "for GEMMs missing in the file; time = time missing GEMMs and add the fastest algorithms to the file");
    visit("gemm_tuning_file", self.gemm_tuning_file,
          "file with the algorithms of GEMMs; runs with the same file are bitwise identical. Entries of a "
          "different GPU or cuBLAS version are ignored");
    visit("allow_tf32", self.allow_tf32,
          "fp32 GEMMs on a GPU round their factors to TF32 (10-bit mantissa); much faster");
    visit("deterministic", self.deterministic, "use only GPU kernels with reproducible results; false may be faster");
    visit("gelu_epilogue", self.gelu_epilogue,
          "with model.activation_func gelu: cuBLASLt fuses bias and GELU into the first GEMM of an MLP, and the "
          "gradient of GELU into the backward pass of the second; not bitwise identical, and not known to be faster");
    visit("cuda_graph_impl", self.cuda_graph_impl,
          "local = record forward and backward of a microbatch in a CUDA graph, which the host launches with one call; "
          "for models so small that launches take longer than kernels, without model parallelism or unpadded experts. "
          "Results are bitwise identical");
    visit("cuda_graph_warmup_steps", self.cuda_graph_warmup_steps,
          "with cuda_graph_impl local: steps after each start that run without graphs, in which libraries load kernels",
          between(1, 1000));
  }

  /// Returns every violated rule between fields, as "device.key: problem and allowed values".
  std::vector<std::string> conflicts() const {
    std::vector<std::string> errors;
    const auto require = [&](bool holds, const char* rule) {
      if (!holds) errors.push_back(str("device.", rule));
    };
    const bool is_gpu = device == DeviceType::Cuda;
    require(!is_gpu || cpu_isa == CpuIsa::Auto, "cpu_isa: only read when device is \"cpu\"");
    require(is_gpu || gemm_tuning == GemmTuning::Off, "gemm_tuning: only read when device is \"cuda\"");
    require(is_gpu || gemm_tuning_file.empty(), "gemm_tuning_file: only read when device is \"cuda\"");
    require(is_gpu || !allow_tf32, "allow_tf32: only read when device is \"cuda\"");
    require(is_gpu || !gelu_epilogue, "gelu_epilogue: only read when device is \"cuda\"");
    require(is_gpu || cuda_graph_impl == CudaGraphImpl::None, "cuda_graph_impl: only read when device is \"cuda\"");
    require(
        cuda_graph_impl == CudaGraphImpl::Local || cuda_graph_warmup_steps == DeviceConfig().cuda_graph_warmup_steps,
        "cuda_graph_warmup_steps: only read when cuda_graph_impl is \"local\"");
    require(is_gpu || deterministic, "deterministic: only read when device is \"cuda\"; the CPU always is");
    require(gemm_tuning == GemmTuning::Off || !gemm_tuning_file.empty(),
            "gemm_tuning: \"time\" needs gemm_tuning_file; without it the next run would choose different algorithms");
    return errors;
  }
};

}  // namespace mcpp

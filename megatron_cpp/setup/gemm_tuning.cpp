#include "megatron_cpp/setup/gemm_tuning.h"

#include <unistd.h>

#include "base/file.h"
#include "comm/object_collectives.h"
#include "tensor/cuda_device.h"
#include "tensor/on_device.h"

namespace mcpp {
namespace {

std::string read_gemm_algos(const DeviceConfig& config) {
  const Path path = config.gemm_tuning_file;
  if (std::filesystem::exists(path)) return read_text_file(path);
  check_input(config.gemm_tuning == GemmTuning::Time, "device.gemm_tuning_file: ", path.string(), " does not exist",
              "; a run with device.gemm_tuning = \"time\" creates it");
  const Path folder = path.has_parent_path() ? path.parent_path() : Path(".");
  check_input(::access(folder.c_str(), W_OK) == 0, "device.gemm_tuning_file: cannot write to ", folder.string());
  return "";
}

}  // namespace

void load_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks) {
  if (config.gemm_tuning_file.empty()) return;
  const std::vector<std::string> texts =
      run_on_all_ranks(ranks, [&] { return ranks.rank() == 0 ? read_gemm_algos(config) : std::string(); });
  if (texts[0].empty() || device.type() == DeviceType::Cpu) return;
  if constexpr (kWithCuda) use_gemm_choices(device, std::span(texts).first(1), config.gemm_tuning_file);
}

void sync_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks) {
  if constexpr (kWithCuda) {
    if (config.gemm_tuning == GemmTuning::Off || device.type() == DeviceType::Cpu) return;
    const std::vector<std::string> found = all_gather_strings(gemm_choices_text(device), ranks);
    use_gemm_choices(device, found, "the choices of the ranks");
    if (ranks.rank() != 0) return;
    const Path path = config.gemm_tuning_file;
    const std::string text = gemm_choices_text(device);
    if (!std::filesystem::exists(path) || read_text_file(path) != text) write_file_atomic(path, text);
  }
}

}  // namespace mcpp

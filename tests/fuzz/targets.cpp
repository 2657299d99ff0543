#include "tests/fuzz/targets.h"

#include <fstream>

#include "base/check.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::fuzz {
namespace {

constexpr Target kTargets[]{{"arguments", arguments},
                            {"batch_size_schedule", batch_size_schedule},
                            {"blend", blend},
                            {"chat_template", chat_template},
                            {"checkpoint_file", checkpoint_file},
                            {"config", config},
                            {"distributed_metadata", distributed_metadata},
                            {"documents", documents},
                            {"gemm_choices", gemm_choices},
                            {"gzip_members", gzip_members},
                            {"huggingface_config", huggingface_config},
                            {"indexed_dataset", indexed_dataset},
                            {"manifest", manifest},
                            {"pickle", pickle},
                            {"pipeline_layout", pipeline_layout},
                            {"quantized_weights", quantized_weights},
                            {"safetensors", safetensors},
                            {"safetensors_index", safetensors_index},
                            {"tokenizer", tokenizer},
                            {"toml_nesting", toml_nesting},
                            {"torch_file", torch_file},
                            {"zstd_frames", zstd_frames}};

}  // namespace

std::span<const Target> targets() {
  return kTargets;
}

std::string finding(const Target& target, std::string_view input) {
  try {
    target.read(input);
  } catch (const Error& error) {
    if (error.code() != ExitCode::BadInput)
      return str("exit code ", static_cast<int>(error.code()), ": ", error.what());
  } catch (const std::exception& error) {
    return str(typeid(error).name(), ": ", error.what());
  }
  return "";
}

Path scratch_file(const std::string& name, std::string_view content) {
  static const test::ScratchFolder folder;
  std::ofstream file(folder / name, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  MCPP_CHECK(file.good(), "cannot write in ", folder.path().string());
  return folder / name;
}

}  // namespace mcpp::fuzz

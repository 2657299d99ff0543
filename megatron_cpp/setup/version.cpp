#include "megatron_cpp/setup/version.h"

#include <H5public.h>
#include <dnnl.h>

#include "base/check.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "comm/mpi/mpi.h"
#include "comm/nccl.h"
#include "tensor/cuda_device.h"
#include "tensor/on_device.h"

namespace mcpp {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang ";
#else
constexpr const char* kCompiler = "gcc ";
#endif

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  MCPP_CHECK(H5get_libversion(&major, &minor, &release) >= 0);
  return str(major, ".", minor, ".", release);
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return str(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace

// CMake defines MCPP_VERSION, MCPP_BUILD_TYPE and MCPP_SENTENCEPIECE_VERSION; that library does not report its version.
std::string version_text() {
  const std::string_view commit = build_commit();
  std::string text = str("megatron_cpp ", MCPP_VERSION, commit.empty() ? "" : str(" (commit ", commit, ")"));
  const auto add = [&](const char* name, const std::string& version) {
    text += str("\n", pad_right(name, 14), version);
  };
  add("compiler", str(kCompiler, __VERSION__));
  add("build type", MCPP_BUILD_TYPE);
  add("MPI", mpi_version());
  if constexpr (kWithCuda) {
    add("CUDA", cuda_version());
    add("cuDNN", cudnn_version());
    add("NCCL", nccl_version());
  }
  add("oneDNN", onednn_version());
  add("HDF5", hdf5_version());
  add("sentencepiece", MCPP_SENTENCEPIECE_VERSION);
  return text;
}

}  // namespace mcpp

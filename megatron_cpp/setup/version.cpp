#include "megatron_cpp/setup/version.h"

#include <H5public.h>
#include <dnnl.h>

#include "base/check.h"
#include "base/strings.h"

// CMake defines MCPP_VERSION, MCPP_BUILD_TYPE and MCPP_SENTENCEPIECE_VERSION; that library does not report its version.

namespace mcpp {

std::string version_text() {
  unsigned major = 0, minor = 0, release = 0;
  MCPP_CHECK(H5get_libversion(&major, &minor, &release) >= 0);
  const dnnl_version_t* dnnl = dnnl_version();
#ifdef __clang__
  const char* compiler = "clang ";
#else
  const char* compiler = "gcc ";
#endif
  return str("megatron_cpp ", MCPP_VERSION, "\ncompiler      ", compiler, __VERSION__, "\nbuild type    ",
             MCPP_BUILD_TYPE, "\noneDNN        ", dnnl->major, ".", dnnl->minor, ".", dnnl->patch, "\nHDF5          ",
             major, ".", minor, ".", release, "\nsentencepiece ", MCPP_SENTENCEPIECE_VERSION);
}

}  // namespace mcpp

// Entry point of the fuzzer program of one target, MCPP_FUZZ_TARGET.
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  for (const mcpp::fuzz::Target& target : mcpp::fuzz::targets()) {
    if (target.name != MCPP_FUZZ_TARGET) continue;
    const std::string found = mcpp::fuzz::finding(target, {reinterpret_cast<const char*>(data), size});
    if (!found.empty()) {
      std::fprintf(stderr, "finding: %s\n", found.c_str());
      std::abort();
    }
    return 0;
  }
  std::abort();
}

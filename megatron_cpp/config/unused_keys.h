// Detection of keys that are set although the rest of the configuration makes them meaningless.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Key with a non-default value that has no effect.
struct UnusedKey {
  std::string key;          ///< such as "optimizer.lr_warmup_init"
  std::string advice;       ///< what to set for the key to take effect, or which key to use instead
  std::string disabled_by;  ///< key whose value makes it meaningless
};

/// Returns every key that is set and has no effect, in the order of the sections. Keys that only confirm what holds
/// anyway, such as parallel.sequence_parallel with one tensor-parallel rank, are not included.
std::vector<UnusedKey> unused_keys(const Config& config);

}  // namespace mcpp

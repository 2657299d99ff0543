// Detection of keys that are set but have no effect in combination with other keys.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Key with a non-default value that has no effect.
struct UnusedKey {
  std::string key;          ///< such as "optimizer.lr_warmup_init"
  std::string advice;       ///< settings required for the key to take effect, or a key to use instead
  std::string disabled_by;  ///< key whose value disables it
};

/// Returns every key that is set and has no effect, in the order of the sections. Keys that never change results, such
/// as parallel.sequence_parallel with one tensor-parallel rank, are not included.
std::vector<UnusedKey> unused_keys(const Config& config);

}  // namespace mcpp

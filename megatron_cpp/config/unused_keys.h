// Keys that are set but that the rest of the configuration makes meaningless.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// A key with a value other than its default that has no effect.
struct UnusedKey {
  std::string key;          ///< "optimizer.lr_warmup_init"
  std::string advice;       ///< what has to be set for the key to be read, or which key to use instead
  std::string disabled_by;  ///< key whose value makes it meaningless
};

/// Returns every key that is set and has no effect, in the order of the sections. Keys that only state what is the case
/// anyway, such as parallel.sequence_parallel with one tensor-parallel rank, are not among them.
std::vector<UnusedKey> unused_keys(const Config& config);

}  // namespace mcpp

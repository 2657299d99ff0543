// Where a run stands, and what defines it: all of a checkpoint but the tensors.
#pragma once
#include <map>
#include <string>

#include "base/types.h"

namespace mcpp {

struct RunState {
  i64 iteration = 0;         ///< optimizer steps done
  i64 consumed_samples = 0;  ///< decides which samples come next, and the learning rate
  i64 consumed_tokens = 0;
  i64 skipped_iterations = 0;  ///< steps not taken because the gradient was not finite
  std::string config = {};     ///< the resolved configuration, TOML
  std::string model_fingerprint = {};
  std::string tokenizer_checksum = {};
  std::string program_version = {};
  std::map<std::string, std::string> extra = {};  ///< anything else that has to survive, by name

  /// Every member but `extra`, as visit(name, member).
  template <class Self, class Visitor>
  static void fields(Self& self, Visitor&& visit) {
    visit("iteration", self.iteration);
    visit("consumed_samples", self.consumed_samples);
    visit("consumed_tokens", self.consumed_tokens);
    visit("skipped_iterations", self.skipped_iterations);
    visit("config", self.config);
    visit("model_fingerprint", self.model_fingerprint);
    visit("tokenizer_checksum", self.tokenizer_checksum);
    visit("program_version", self.program_version);
  }

  bool operator==(const RunState&) const = default;
};

}  // namespace mcpp

// Progress and identity of a run: everything in a checkpoint except the tensors.
#pragma once
#include <map>
#include <string>

#include "base/types.h"

namespace mcpp {

struct RunState {
  i64 iteration = 0;         ///< completed optimizer steps
  i64 consumed_samples = 0;  ///< determines the next samples and the learning rate
  i64 consumed_tokens = 0;
  i64 skipped_iterations = 0;  ///< steps skipped because the gradient was not finite
  std::string config = {};     ///< the resolved configuration, in TOML
  std::string model_fingerprint = {};
  std::string tokenizer_checksum = {};
  std::string program_version = {};
  std::map<std::string, std::string> extra = {};  ///< other state by name

  /// Calls visit(name, member) for every member except `extra`.
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

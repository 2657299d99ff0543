// What a run writes about itself, and how often. Names are Megatron-LM's where it has one.
#pragma once
#include <string>

#include "base/fields.h"

namespace mcpp {

struct LoggingConfig {
  i64 log_interval = 10;
  bool log_progress = true;
  std::string metrics;
  bool metrics_every_iteration = false;
  double peak_tflops = 0;
  std::string sample_prompt;
  i64 sample_tokens = 32;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("log_interval", self.log_interval, "iterations between two lines of the log", at_least(1));
    visit("log_progress", self.log_progress, "a live line, overwritten at every iteration, when there is a terminal");
    visit("metrics", self.metrics,
          "file that gets one JSON object per line of the log; empty = metrics.jsonl in checkpoint.save, if any");
    visit("metrics_every_iteration", self.metrics_every_iteration,
          "an object for every iteration, of that one alone, instead of means at each line of the log");
    visit("peak_tflops", self.peak_tflops,
          "peak of one device in TFLOP/s, that MFU is a share of; 0 = the data sheet's of a known GPU, else measured",
          at_least(0));
    visit("sample_prompt", self.sample_prompt,
          "text that the model continues at each evaluation of the validation set, for the metrics; empty = nothing");
    visit("sample_tokens", self.sample_tokens,
          "tokens of that at most, until the sequence is full; each costs the forward pass of a sample", at_least(1));
  }
};

}  // namespace mcpp

// The global batch size as a function of how many samples were consumed: constant, or growing in steps.
#pragma once
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// How a global batch is cut up.
struct BatchShape {
  i64 micro_batch_size = 1;  ///< samples of one forward pass on one rank
  i64 data_parallel_size = 1;
};

class BatchSchedule {
 public:
  /// BadInput, naming training.global_batch_size, unless it is a multiple of micro_batch_size * data_parallel_size.
  static BatchSchedule constant(i64 global_batch_size, BatchShape shape);

  /// Megatron-LM's --step-batch-size-schedule: "0:768 250B:1536" = 768 from the start, 1536 from 250e9 tokens on.
  /// Thresholds are numbers with an optional suffix K, M, B or T (1e3 to 1e12) and count tokens, which are turned to
  /// whole samples by seq_length, rounding down; with seq_length 0 they count samples. The first is 0; thresholds and
  /// sizes must grow. BadInput, naming training.step_batch_size_schedule and the entry, for anything else.
  static BatchSchedule parse(std::string_view text, i64 seq_length, BatchShape shape);

  /// Of the step that begins after `consumed_samples`. The step that crosses a threshold keeps its size.
  i64 global_batch_size(i64 consumed_samples) const;
  /// The same, as microbatches per rank.
  i64 microbatches(i64 consumed_samples) const;
  i64 largest_batch_size() const { return steps_.back().global_batch_size; }

  /// Samples consumed by the first `iterations` steps.
  i64 samples_after(i64 iterations) const;
  /// Whole steps that `samples` samples are enough for.
  i64 iterations_within(i64 samples) const;

 private:
  struct Step {
    i64 first_sample;
    i64 global_batch_size;
  };
  BatchSchedule(std::vector<Step> steps, BatchShape shape, std::string_view key);

  /// Walks the schedule from the start, at most to the end of `iterations` and of `samples`.
  struct Progress {
    i64 iterations = 0, samples = 0;
  };
  Progress advance(i64 iterations, i64 samples) const;

  std::vector<Step> steps_;  // by first_sample; never empty
  BatchShape shape_;
};

}  // namespace mcpp

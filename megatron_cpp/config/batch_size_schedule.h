// Growth of the global batch size during training, as Megatron-LM's --step-batch-size-schedule "0:768 250B:1536".
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Global batch size from `first_sample` consumed samples on.
struct BatchSizeStep {
  i64 first_sample = 0;
  i64 batch_size = 0;
  bool operator==(const BatchSizeStep&) const = default;
};

struct BatchSizeSchedule {
  std::vector<BatchSizeStep> steps;
  std::vector<std::string> problems;  ///< problems of the text; `steps` is valid only if there are none
};

/// Parses steps "AT:SIZE", separated by spaces or as entries of the list. AT is a number of samples, or of tokens
/// if it ends in K, M, B or T (10^3, 10^6, 10^9, 10^12): the first sample at or after that token. The first AT must be
/// 0, both values must increase, and every size must be a multiple of `micro_batch_size`.
BatchSizeSchedule parse_batch_size_schedule(std::span<const std::string> texts, i64 seq_length, i64 micro_batch_size);

/// Returns the batch size of the iteration that starts after `consumed_samples`. `steps` must not be empty.
i64 batch_size_at(std::span<const BatchSizeStep> steps, i64 consumed_samples);

/// Returns true if an entry of step_batch_size_schedule states its position in tokens, such as "250B:1536". Its
/// position in samples depends on the sequence length.
bool has_token_positions(std::span<const std::string> texts);

struct FullBatches {
  i64 iterations = 0;
  i64 samples = 0;  ///< number of samples in these iterations
};
/// Counts the full iterations from `consumed_samples` on that do not read beyond sample `samples`.
FullBatches full_batches(std::span<const BatchSizeStep> steps, i64 samples, i64 consumed_samples = 0);

}  // namespace mcpp

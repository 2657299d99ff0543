// Conversion of task items to windows of tokens, as in lm-evaluation-harness.
#pragma once
#include <functional>
#include <vector>

#include "megatron_cpp/inference/evaluation/task_file.h"
#include "megatron_cpp/inference/window_scorer.h"

namespace mcpp {

/// Tokenization of contexts and continuations.
struct TaskEncoder {
  std::function<std::vector<i32>(std::string_view)> encode;
  i32 prefix = 0;            ///< token before a continuation without context: the one that begins texts
  bool adds_prefix = false;  ///< add `prefix` before every context that does not begin with it
};

struct EncodedPair {
  std::vector<i32> context, continuation;
};

/// Encodes a context and its continuation. Whitespace (as defined by Unicode) at the end of the context moves to the
/// continuation, since tokens begin with it. The tokens of the continuation are those that both together have beyond
/// those of the context. Either may be empty.
EncodedPair encode_pair(const TaskEncoder& encoder, std::string context, std::string continuation);

/// Tokens of all continuations, each after its context, with a window that scores each.
struct TaskRequests {
  std::vector<i32> tokens;
  std::vector<EvaluationWindow> windows;  ///< ordered by item, then by continuation
};

/// Serializes requests, for other ranks.
std::string pack(const TaskRequests& requests);
TaskRequests unpack_requests(std::string_view bytes);

/// Adds the requests of `task`. Truncates contexts that are too long at the beginning, so that the model predicts at
/// most seq_length tokens in a window. Throws BadInput, naming the line, for a continuation that is longer than that or
/// has no token of its own.
void add_requests(const Task& task, const TaskEncoder& encoder, i64 seq_length, TaskRequests& requests);

/// Score of one request.
struct Likelihood {
  double log_likelihood = 0;  ///< ln p of the continuation after its context
  bool is_greedy = false;     ///< true if each of its tokens is the most likely one
};

/// Returns the scores by window of the requests. Collective over `parallel`; arguments and results are identical on all
/// ranks.
std::vector<Likelihood> score_requests(GPTModel& stage, ParallelState& parallel, const TaskRequests& requests,
                                       ScoringOptions options);

}  // namespace mcpp

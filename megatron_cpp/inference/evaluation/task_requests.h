// From the items of tasks to windows of tokens, as lm-evaluation-harness cuts them.
#pragma once
#include <functional>
#include <vector>

#include "megatron_cpp/inference/evaluation/task_file.h"
#include "megatron_cpp/inference/window_scorer.h"

namespace mcpp {

/// What text becomes tokens with.
struct TaskEncoder {
  std::function<std::vector<i32>(std::string_view)> encode;
  i32 prefix = 0;            ///< stands before a continuation without context: what begins texts
  bool adds_prefix = false;  ///< it stands before every context, unless the context begins with it
};

struct EncodedPair {
  std::vector<i32> context, continuation;
};

/// Whitespace at the end of the context, as Unicode has it, goes over to the continuation, since tokens begin with it;
/// the continuation is what the tokens of both together have beyond those of the context. Either may come out empty.
EncodedPair encode_pair(const TaskEncoder& encoder, std::string context, std::string continuation);

/// Tokens of all continuations one after another, each behind its context: a window for each, that scores it.
struct TaskRequests {
  std::vector<i32> tokens;
  std::vector<EvaluationWindow> windows;  ///< by item, by continuation
};

/// As bytes, for other ranks.
std::string pack(const TaskRequests& requests);
TaskRequests unpack_requests(std::string_view bytes);

/// Adds those of `task`. Of a context that is too long the beginning is left out, so that the model predicts at most
/// seq_length tokens in a window. BadInput, naming the line, for a continuation that is longer than that, or that has
/// no token of its own.
void add_requests(const Task& task, const TaskEncoder& encoder, i64 seq_length, TaskRequests& requests);

/// What a model finds of a request.
struct Likelihood {
  double log_likelihood = 0;  ///< ln p of the continuation after its context
  bool is_greedy = false;     ///< each of its tokens is the likeliest
};

/// On all ranks of `parallel`, which get the same, by window of the requests. Called by all with the same.
std::vector<Likelihood> score_requests(GPTModel& stage, ParallelState& parallel, const TaskRequests& requests,
                                       ScoringOptions options);

}  // namespace mcpp

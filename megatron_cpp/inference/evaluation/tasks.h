// Tasks that consist of multiple-choice questions: files, requests to the model, and scores.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/inference/window_scorer.h"
#include "megatron_cpp/resume/special_tokens.h"

namespace mcpp {

// Likelihood tasks, which test how likely the model finds continuations of a context. One JSON object per line:
//
//   {"context": "The cat sat on the", "continuations": ["mat", "moon"], "answer": 0}
//
// With several continuations (HellaSwag, ARC) the model chooses one. `answer` is an index from 0, or a list of several
// correct indices. With one continuation (LAMBADA) the question is whether the model would generate it, and `answer` is
// omitted. "target_delimiter" separates context and continuation; the default is a space. Other keys are ignored.

struct TaskItem {
  i64 line = 0;  ///< line in the file, from 1
  std::string context;
  std::vector<std::string> continuations;  ///< at least one; none is empty
  std::vector<i64> answers;  ///< indices of correct continuations; empty if the item has only one continuation
  std::string target_delimiter = " ";
};

struct Task {
  std::string name;  ///< name of the file without folder and extension
  Path file;
  std::vector<TaskItem> items;

  /// Returns true if the model chooses among continuations, false if each item has a single continuation. Identical for
  /// all items.
  bool is_choice() const { return items.front().continuations.size() > 1; }
  /// Returns "file:line" for messages.
  std::string location(const TaskItem& item) const;
};

/// Reads a file, compressed or not, as preprocess does. Throws BadInput, naming file and line, for malformed lines and
/// for files that are empty or contain items with and without a choice.
Task read_task(const Path& file);

// Conversion of task items to windows of tokens, as in lm-evaluation-harness.

/// Tokenization of contexts and continuations.
struct TaskEncoder {
  std::function<std::vector<i32>(std::string_view)> encode;
  i32 prefix = 0;            ///< token before a continuation without context: the token that begins texts
  bool adds_prefix = false;  ///< add `prefix` before every context that does not begin with it
};

/// Returns the encoder of a model with these special tokens.
TaskEncoder task_encoder(Tokenizer tokenizer, const SpecialTokens& special);

struct EncodedPair {
  std::vector<i32> context, continuation;
};

/// Encodes a context and its continuation. Whitespace (as defined by Unicode) at the end of the context moves to the
/// continuation, since tokens begin with whitespace. Tokenizes the context and the concatenation of both; the
/// continuation consists of the tokens of the concatenation that follow as many tokens as the context has. Either may
/// be empty.
EncodedPair encode_pair(const TaskEncoder& encoder, std::string context, std::string continuation);

/// Tokens of all continuations, each after its context, with a window that scores it.
struct TaskRequests {
  std::vector<i32> tokens;
  std::vector<EvaluationWindow> windows;  ///< ordered by item, then by continuation
};

/// Serializes requests, to send them to other ranks.
std::string pack(const TaskRequests& requests);
TaskRequests unpack_requests(std::string_view bytes);

/// Adds the requests of `task`. Truncates contexts that are too long at the beginning, so that the model predicts at
/// most seq_length tokens in a window. Throws BadInput, naming the line, for a continuation that is longer than
/// seq_length tokens or has no token of its own.
void add_requests(const Task& task, const TaskEncoder& encoder, i64 seq_length, TaskRequests& requests);

/// Score of one request.
struct Likelihood {
  double log_likelihood = 0;  ///< ln p of the continuation after its context
  bool is_greedy = false;     ///< true if each of its tokens is the most likely one
};

// Metrics of a task, computed from the likelihoods of its continuations as in lm-evaluation-harness.

/// Scores of one item. For tasks without choice only `acc` is used: true if the model would generate the continuation.
struct ItemScores {
  std::vector<Likelihood> continuations;
  bool acc = false;        ///< true if the most likely continuation is correct
  bool acc_norm = false;   ///< as acc, with likelihoods normalized by characters of the continuation without delimiter
  bool acc_bytes = false;  ///< as acc, with likelihoods normalized by UTF-8 bytes
};

/// Mean over the items of a task.
struct TaskMetric {
  std::string
      name;  ///< metric: acc, acc_norm or acc_bytes; or perplexity, exp(-mean log-likelihood) of the continuation
  double value = 0;
  std::optional<double>
      standard_error;  ///< error of the mean (for perplexity by the delta method); std::nullopt for a single item
};

struct TaskScores {
  std::vector<TaskMetric> metrics;
  std::vector<ItemScores> items;
};

/// Computes the metrics. `likelihoods` is ordered by item, then by continuation.
TaskScores task_scores(const Task& task, std::span<const Likelihood> likelihoods);

struct TaskResult {
  Task task;
  TaskScores scores;
};

/// Tasks that the ranks of a model score together. Only rank 0 reads the files and has the items; every rank has the
/// requests.
class TaskSuite {
 public:
  /// Reads the files that match `patterns`. Calls `make_encoder` on rank 0 only. Throws BadInput on all ranks like
  /// read_task() and add_requests(). Collective over `ranks`.
  TaskSuite(const std::vector<std::string>& patterns, const std::function<TaskEncoder()>& make_encoder, i64 seq_length,
            Communicator& ranks);

  /// Returns the results on rank 0, in the order of the files; other ranks return an empty list. Calls `should_stop`
  /// regularly, which must return the same value on all ranks, and returns std::nullopt if it is true. Collective.
  std::optional<std::vector<TaskResult>> score(
      GPTModel& stage, ParallelState& parallel, const ScoringOptions& options,
      const std::function<bool()>& should_stop = [] { return false; }) const;

  /// Returns the names of the tasks; empty except on rank 0.
  std::vector<std::string> names() const;

 private:
  std::vector<Task> tasks_;
  TaskRequests requests_;
};

/// Returns one JSON object per item, with its line number, the score of each continuation and the resulting metrics.
std::string samples_as_jsonl(const Task& task, const TaskScores& scores);

}  // namespace mcpp

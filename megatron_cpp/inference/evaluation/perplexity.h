// Held-out perplexity: every token of a text is scored once, with the longest context that the model and the stride
// allow.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/document_reader.h"
#include "megatron_cpp/inference/inference.h"
#include "megatron_cpp/inference/window_scorer.h"

namespace mcpp {

// Held-out texts whose perplexity is measured.

/// Tokens to score, after one context token, and the size of the text they encode.
struct HeldOut {
  std::string name;  ///< name of the file, files or dataset
  std::vector<i32> tokens;
  std::vector<u8> targets = {};  ///< 1 for each token to score, 0 for others; empty = all are scored
  i64 words = 0, bytes = 0;      ///< 0 = unknown
};

/// Reads all `files` as one text, in the formats of preprocess. The first document follows the token that begins texts
/// (SpecialTokens::text_begin()). Each later document follows the end token of the previous document, which is scored,
/// and bos if the model has it. Throws BadInput if a file cannot be read or there is no text.
HeldOut read_texts(const std::vector<std::string>& files, const DocumentFormat& format, const Tokenizer& tokenizer,
                   const SpecialTokens& special = {});

/// Reads a dataset of preprocess or of a compatible program. Throws BadInput if it is empty, was made with a tokenizer
/// other than the model's, has tokens outside of the model's vocabulary, or lacks end tokens although the model
/// separates documents. Of a dataset with a loss mask, the tokens with a loss are scored, and the size of the text is
/// unknown.
HeldOut read_dataset(const Path& prefix, const InferenceModel& inference);

/// Serializes texts, to send them to other ranks.
std::string pack(const std::vector<HeldOut>& texts);
std::vector<HeldOut> unpack(std::string_view bytes);

/// Returns windows over `tokens` tokens. The first token is context only; every other token is scored exactly once. A
/// window predicts up to seq_length tokens and starts `stride` (1 .. seq_length) after the previous one.
std::vector<EvaluationWindow> evaluation_windows(i64 tokens, i64 seq_length, i64 stride);

struct Perplexity {
  double nll = 0;  ///< sum of -ln p over the scored tokens
  i64 tokens = 0;  ///< number of scored tokens
  i64 words = 0;   ///< words of the raw text; 0 = unknown
  i64 bytes = 0;   ///< bytes of the raw text; 0 = unknown

  double loss() const { return nll / static_cast<double>(tokens); }
  double token_perplexity() const;
  double word_perplexity() const;
  double byte_perplexity() const;
  double bits_per_byte() const;
};

/// Options of evaluate_texts().
struct EvaluationOptions {
  i64 window = 1;                ///< maximum number of tokens that a window predicts, from 1 to the model's seq_length
  i64 stride = 1;                ///< tokens between the starts of windows, as in evaluation_windows()
  i64 micro_batch_size = 1;      ///< windows in one pass; does not change the result
  DocumentRules documents = {};  ///< rules that the model was trained with
  i32 begin_token = -1;          ///< token before documents that is never scored; -1 = none
  std::function<void(i64 done, i64 all)> progress = [](i64, i64) {
  };  ///< called regularly with the number of windows scored so far and the total
};

/// Scores `texts`. The first token of a text is context only. Collective over `parallel`,
/// with identical texts on all ranks; returns identical results on all ranks. Windows are distributed over
/// data-parallel ranks, and windows of short texts share batches. Sets nll and tokens of each Perplexity. The sum of a
/// text is accumulated in fp64 in token order, regardless of the micro-batch, the layout and the other texts.
std::vector<Perplexity> evaluate_texts(GPTModel& stage, ParallelState& parallel, std::span<const HeldOut> texts,
                                       const EvaluationOptions& options);

}  // namespace mcpp

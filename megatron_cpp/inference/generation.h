// Autoregressive text generation.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "data/dataset/batch.h"
#include "data/tokenizer/tokenizer.h"
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

/// Sampling of the next token from logits.
struct SamplingOptions {
  double temperature = 0.8;
  i64 top_k = 0;
  double top_p = 1;
  i64 seed = 1234;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("temperature", self.temperature, "divisor of the logits; 0 = always the most likely token", at_least(0));
    visit("top_k", self.top_k, "sample from the k most likely tokens; 0 = all", at_least(0));
    visit("top_p", self.top_p, "sample from the most likely tokens with this total probability (nucleus sampling)",
          Constraint{.min = 0, .max = 1, .min_is_excluded = true});
    visit("seed", self.seed, "random seed; the same seed generates the same text", at_least(0));
  }
};

/// Samples a token from softmax(logits / temperature), restricted to top_k and top_p (nucleus sampling, Holtzman et
/// al., "The Curious Case of Neural Text Degeneration", 2020). `draw` numbers the draws of one seed. Deterministic;
/// ties go to the lower token.
i32 sample_token(std::span<const float> logits, const SamplingOptions& options, u64 draw);

/// Speculative decoding with drafts from the text itself (prompt lookup; Saxena, "Prompt Lookup Decoding", 2023): the
/// tokens that followed the last tokens of a text where they occurred before. One pass of the model checks all tokens
/// of a draft, and those that the model would not have chosen are discarded. Drafts do not change the text, except for
/// rounding in GEMMs with different numbers of rows.
struct DraftOptions {
  i64 num_speculative_tokens = 0;
  i64 prompt_lookup_max = 3;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("num_speculative_tokens", self.num_speculative_tokens,
          "maximum number of tokens that are drafted by repeating the text and then checked in one pass of the model; "
          "changes the speed but, except for rounding, not the text; 0 = none",
          between(0, 1024));
    visit("prompt_lookup_max", self.prompt_lookup_max,
          "maximum number of last tokens to find earlier in the text; the draft is what followed them there",
          between(1, 1024));
  }
};

/// Returns up to `count` tokens that followed the latest earlier occurrence of the last n tokens of `tokens`, for the
/// largest n up to prompt_lookup_max that has one; nothing if the last token occurs only once.
std::vector<i32> draft_tokens(std::span<const i32> tokens, const DraftOptions& options, i64 count);

/// Passes of the model, and the tokens drafted for and accepted by them, in each text that had not ended.
struct GenerationCounts {
  i64 passes = 0, drafted = 0, accepted = 0;
};

struct GenerationLimits {
  i64 max_new_tokens = 256;           ///< limit for each text
  std::vector<i32> stop_tokens = {};  ///< tokens that end a text; not passed to the listener
  DocumentRules documents = {};       ///< rules that the model was trained with
  DraftOptions drafts = {};
};

/// Text to continue: at least one token, and the sampling options for its continuation.
struct TextStart {
  std::vector<i32> prompt;
  SamplingOptions sampling;
};

/// Callback that receives the index of a text and each new token as soon as it is known, or -1 after the last token.
using TokenListener = std::function<void(std::size_t text, i32 token)>;

/// Continues several texts in one batch. Collective over `parallel`; all ranks return the same tokens, and
/// data-parallel ranks process the same texts. All texts advance at the same position: generation begins at the end of
/// the shortest prompt, and longer prompts supply the next tokens until they end. A text is therefore identical to a
/// text generated separately, except for rounding in GEMMs with different numbers of rows. Keys and values are cached;
/// when the context is full, its second half is re-encoded and kept. With drafts, models with recurrent layers are
/// rejected, because their states cannot return to an earlier position.
GenerationCounts generate(GPTModel& stage, ParallelState& parallel, std::vector<TextStart> texts,
                          const GenerationLimits& limits, const TokenListener& deliver);

/// Printing of texts that are generated in one batch, in their order.
class TextPrinter {
 public:
  /// Output format. Stream: text as it is generated, each after its prompt, separated by "----". JsonLines: one line
  /// {"prompt": .., "text": ..} per finished text, where "text" is the generated part.
  enum class Form { Stream, JsonLines };
  using Sink = std::function<void(std::string_view)>;

  TextPrinter(Form form, Sink sink) : form_(form), sink_(std::move(sink)) {}

  /// Prompt of a text. `tokens` are the tokens of `text` that the model reads. Both members are unused after begin().
  struct Prompt {
    std::string_view text;
    std::span<const i32> tokens;
  };
  void begin(std::span<const Prompt> prompts, const Tokenizer& tokenizer);
  /// Adds the next token of a text; -1 = the text has ended.
  void add(std::size_t text, i32 token);

 private:
  struct Text {
    std::string prompt;
    StreamDecoder decoder;
    i64 vocab_size;         // vocabulary of the tokenizer; the model may have more tokens, which decode to nothing
    std::string generated;  // generated but not shown yet
    bool has_begun = false, has_ended = false;
  };
  /// Prints the text that is ready.
  void show();
  void show_stream(Text& text);
  void show_json(const Text& text) const;

  Form form_;
  Sink sink_;
  std::vector<Text> texts_;
  std::size_t next_ = 0;  // first text that is not printed completely
  bool is_first_ = true;  // no text was printed yet
};

}  // namespace mcpp

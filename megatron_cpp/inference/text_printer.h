// Printing of texts that are generated in one batch, in their order.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace mcpp {

class TextPrinter {
 public:
  /// Output format. Stream: text as it is generated, each after its prompt, separated by "----". JsonLines: one line
  /// {"prompt": .., "text": ..} per finished text, where "text" is the generated part.
  enum class Form { Stream, JsonLines };
  using Sink = std::function<void(std::string_view)>;

  TextPrinter(Form form, Sink sink) : form_(form), sink_(std::move(sink)) {}

  /// Prompt of a text. `tokens` are those of `text` that the model reads. Neither is referenced after begin().
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
    i64 vocab_size;         // of the tokenizer; models may have more tokens, which decode to nothing
    std::string generated;  // generated but not shown yet
    bool has_begun = false, has_ended = false;
  };
  /// Shows the text that is ready.
  void show();
  void show_stream(Text& text);
  void show_json(const Text& text) const;

  Form form_;
  Sink sink_;
  std::vector<Text> texts_;
  std::size_t next_ = 0;  // first text that is not shown completely
  bool is_first_ = true;  // no text was shown yet
};

}  // namespace mcpp

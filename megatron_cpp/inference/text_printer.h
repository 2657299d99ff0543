// Texts that are made side by side, shown one after another.
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
  /// How texts are shown: as they are made, each with its prompt, "----" between; or, each when it is whole, as a line
  /// of JSON {"prompt": .., "text": ..}, where "text" is what was made.
  enum class Form { Stream, JsonLines };
  using Sink = std::function<void(std::string_view)>;

  TextPrinter(Form form, Sink sink) : form_(form), sink_(std::move(sink)) {}

  /// Texts of these prompts, all that `add` will tell of until the next call. `tokens` are those of `text` that the
  /// model sees; neither is looked at later.
  struct Prompt {
    std::string_view text;
    std::span<const i32> tokens;
  };
  void begin(std::span<const Prompt> prompts, const Tokenizer& tokenizer);
  /// The next token of a text; -1 = it has ended.
  void add(std::size_t text, i32 token);

 private:
  struct Text {
    std::string prompt;
    StreamDecoder decoder;
    i64 vocab_size;    // of the tokenizer; models may have more tokens, which spell nothing
    std::string made;  // and not shown yet
    bool has_begun = false, has_ended = false;
  };
  /// What can be shown now.
  void show();
  void show_stream(Text& text);
  void show_json(const Text& text) const;

  Form form_;
  Sink sink_;
  std::vector<Text> texts_;
  std::size_t next_ = 0;  // the first text that is not shown wholly
  bool is_first_ = true;  // of all
};

}  // namespace mcpp

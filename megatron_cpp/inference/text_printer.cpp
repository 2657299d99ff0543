#include "megatron_cpp/inference/text_printer.h"

#include <nlohmann/json.hpp>

namespace mcpp {

void TextPrinter::begin(std::span<const Prompt> prompts, const Tokenizer& tokenizer) {
  texts_.clear();
  next_ = 0;
  for (const Prompt& prompt : prompts) {
    texts_.push_back({.prompt = std::string(prompt.text),
                      .decoder = StreamDecoder(tokenizer),
                      .vocab_size = tokenizer.vocab_size(),
                      .generated = {}});
    for (const i32 token : prompt.tokens)
      texts_.back().decoder.add(token);  // so that the generated text joins correctly
  }
  show();
}

void TextPrinter::add(std::size_t text, i32 token) {
  Text& to = texts_.at(text);
  if (token < to.vocab_size) to.generated += token >= 0 ? to.decoder.add(token) : to.decoder.finish();
  to.has_ended = token < 0;
  show();
}

void TextPrinter::show() {
  for (; next_ < texts_.size(); ++next_) {
    Text& text = texts_[next_];
    if (form_ == Form::Stream) show_stream(text);
    if (!text.has_ended) return;
    if (form_ == Form::JsonLines) show_json(text);
  }
}

void TextPrinter::show_stream(Text& text) {
  if (!text.has_begun) sink_((is_first_ ? "" : "----\n") + text.prompt);
  text.has_begun = true, is_first_ = false;
  if (text.has_ended) text.generated += "\n";
  if (!text.generated.empty()) sink_(std::exchange(text.generated, {}));
}

void TextPrinter::show_json(const Text& text) const {
  const nlohmann::ordered_json line{{"prompt", text.prompt}, {"text", text.generated}};
  sink_(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace mcpp

// Conversion of instruction data to tokens with a loss mask: prompts with completions, and conversations that a chat
// template of a Hugging Face tokenizer renders.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "base/stored_ref.h"
#include "data/jinja/interpreter.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Content of each JSON object.
enum class JsonContent { Text, PromptCompletion, Messages };
template <>
struct EnumNames<JsonContent> {
  static constexpr std::array<std::string_view, 3> value{"text", "prompt_completion", "messages"};
};

struct ConversationFormat {
  JsonContent content = JsonContent::Text;
  std::string chat_template = {};  ///< file; "" = next to the tokenizer
  bool append_eod = true;

  /// Prompts and completions that are texts need no template.
  bool has_template() const { return content == JsonContent::Messages || !chat_template.empty(); }
};

/// Tokens of one document, and 1 for each token that the model learns to predict, 0 for others.
struct MaskedTokens {
  std::vector<i32> tokens, targets;
  i64 bytes = 0, words = 0;  ///< of the text
};

/// Chat template with the special tokens that it may use.
struct ChatTemplate {
  std::string source;
  jinja::Template program;
  jinja::Dict special_tokens;         ///< bos_token, eos_token, pad_token and unk_token, if known
  std::vector<std::string> controls;  ///< tokens named in the template, each of which must be one id
};

/// Reads `file` or, if it is empty, chat_template.jinja or the member chat_template of tokenizer_config.json in the
/// folder of the tokenizer. Throws BadInput if there is none, if it is not supported (see data/jinja/interpreter.h), or
/// if it uses bos_token or eos_token but tokenizer_config.json does not state it.
ChatTemplate read_chat_template(const Path& file, const Path& tokenizer);

/// Returns the checksum of the template that a format uses and of its special tokens; "" if it uses none.
std::string chat_template_checksum(const ConversationFormat& format, const Path& tokenizer);

/// Encoder of JSON objects. Const methods are thread-safe.
class ConversationEncoder {
 public:
  /// Throws BadInput like read_chat_template(), if the format needs a template, and if the tokenizer does not recognize
  /// the special tokens of the template in a text.
  ConversationEncoder(ConversationFormat format, StoredRef<Tokenizer> tokenizer);

  /// Encodes a JSON object. Sets `problem` to a description of the error if the object is invalid; the result is then
  /// unusable.
  MaskedTokens encode(std::string_view line, std::string& problem) const;

  /// Returns true if the template writes the token that ends documents inside of conversations.
  bool ends_documents_early() const;

 private:
  /// Part of a text that has a loss, or does not.
  struct Part {
    std::string_view text;
    bool is_target = false;
  };

  MaskedTokens encode_completion(const OrderedJson& object) const;
  MaskedTokens encode_messages(const OrderedJson& object, const OrderedJson& messages, std::size_t first_target) const;
  /// Returns the byte ranges of `text`, all messages, that the assistant writes in messages from `first_target` on.
  std::vector<std::pair<std::size_t, std::size_t>> answers(const OrderedJson& object, const OrderedJson& messages,
                                                           std::size_t first_target,
                                                           const jinja::Rendering& whole) const;
  /// Renders the first `count` messages.
  jinja::Rendering render(const OrderedJson& object, const OrderedJson& messages, std::size_t count,
                          bool adds_generation_prompt) const;
  MaskedTokens encode_parts(std::vector<Part> parts, bool is_eod_target) const;

  ConversationFormat format_;
  const Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;  // none for prompts with completions that are texts
};

}  // namespace mcpp

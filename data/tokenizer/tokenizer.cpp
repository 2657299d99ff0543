#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_file.h"

namespace mcpp {

struct Tokenizer::Impl {
  Path path;
  std::string checksum;
  std::unique_ptr<TextCoder> coder;
};

Tokenizer::Tokenizer(const Path& file) : impl_(std::make_unique<Impl>()) {
  const std::string content = read_tokenizer_file(file);
  impl_->path = file;
  impl_->checksum = checksum_hex(content);
  impl_->coder = make_text_coder(content, file.string());
  check_input(eod() >= 0, "tokenizer model ", file.string(),
              ": has no token that ends documents: a piece <eod>, an end-of-sentence piece, or a known one such as "
              "<|endoftext|>; train a tokenizer with `megatron_cpp tokenizer` or with spm_train "
              "--user_defined_symbols=<eod>, or add a special token <eod>");
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

i64 Tokenizer::vocab_size() const {
  return impl_->coder->vocab_size();
}

i32 Tokenizer::eod() const {
  return impl_->coder->eod();
}

i32 Tokenizer::id(std::string_view piece) const {
  return impl_->coder->id(piece);
}

void Tokenizer::check_id(i32 id) const {
  check_input(id >= 0 && id < vocab_size(), "token id ", id, " is outside 0 .. ", vocab_size() - 1);
}

std::string Tokenizer::piece(i32 id) const {
  check_id(id);
  return impl_->coder->piece(id);
}

const std::string& Tokenizer::checksum() const {
  return impl_->checksum;
}

const Path& Tokenizer::path() const {
  return impl_->path;
}

std::vector<i32> Tokenizer::prefix_tokens() const {
  return impl_->coder->prefix_tokens();
}

std::vector<std::pair<std::string, std::string>> Tokenizer::describe() const {
  auto lines = impl_->coder->describe();
  lines.emplace_back("pieces", str(vocab_size()));
  lines.emplace_back("ends documents", str(piece(eod()), " (", eod(), ")"));
  std::vector<std::string> before;
  for (const i32 id : prefix_tokens()) before.push_back(str(piece(id), " (", id, ")"));
  if (!before.empty()) lines.emplace_back("not added before texts", join(before, " "));
  lines.emplace_back("checksum", checksum());
  return lines;
}

std::vector<i32> Tokenizer::encode(std::string_view text, const TextPart& part) const {
  const i64 invalid_byte = find_invalid_utf8(text);
  if (invalid_byte >= 0) {
    const auto line = 1 + std::count(text.begin(), text.begin() + invalid_byte, '\n');
    fail(ExitCode::BadInput, "the text is not UTF-8 at byte ", invalid_byte, " (line ", line, ")");
  }
  std::vector<i32> ids;
  impl_->coder->encode(text, part, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const i32> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (const i32 id : ids) text += decoder.add(id);
  return text + decoder.finish();
}

std::string StreamDecoder::add(i32 id) {
  tokenizer_.check_id(id);
  const TextCoder& coder = *tokenizer_.impl_->coder;
  std::string_view bytes = coder.bytes(id);
  if (is_first_ && coder.drops_first_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
  incomplete_ += bytes;
  if (!coder.is_control(id)) is_first_ = false;
  const auto whole = incomplete_.size() - static_cast<std::size_t>(utf8_incomplete_suffix(incomplete_));
  std::string text = replace_invalid_utf8(std::string_view(incomplete_).substr(0, whole));
  incomplete_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(incomplete_);
  incomplete_.clear();
  is_first_ = true;
  return text;
}

}  // namespace mcpp

#include "data/tokenizer/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/sentencepiece_model.h"

namespace mcpp {
namespace {

constexpr std::size_t kBlockBytes = 1024;

/// "<0x0A>" -> '\n'
char byte_of_piece(const std::string& piece) {
  return static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
}

/// Whether the library takes the model. It throws for some defects, and answers for others.
bool load(sentencepiece::SentencePieceProcessor& processor, const std::string& model) {
  try {
    return processor.LoadFromSerializedProto(model).ok() && processor.GetPieceSize() > 0;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

struct Tokenizer::Impl {
  Path path;
  std::string checksum;
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::string> bytes;  // what each id decodes to
  std::vector<i32> literal_space;  // byte pieces of U+2581, empty without byte fallback
  bool adds_prefix_space = false;  // the model puts a space before every text
  i32 eod = -1;

  bool can_split = false;  // no piece reaches from a word over the space after it

  void append_block(std::string_view text, std::vector<i32>& ids) const {
    std::vector<int> part;
    const auto status = processor.Encode(absl::string_view(text.data(), text.size()), &part);
    check_input(status.ok(), "tokenizer model ", path.string(), ": damaged, it cannot encode: ", status.ToString());
    ids.insert(ids.end(), part.begin(), part.end());
  }
  void append_encoded(std::string_view text, std::vector<i32>& ids) const;
  bool pieces_end_at_spaces() const;
};

/// Encodes in blocks, since sentencepiece's time per byte grows with the length of what it is given. Blocks end before
/// a space that follows a word: no piece lies across, so the ids are those of the whole. A model that puts a space
/// before every text puts back the one that is left out between blocks.
void Tokenizer::Impl::append_encoded(std::string_view text, std::vector<i32>& ids) const {
  while (can_split && text.size() > kBlockBytes) {
    std::size_t space = text.find(' ', kBlockBytes);
    while (space < text.size() && text[space - 1] == ' ') space = text.find(' ', space + 1);
    if (space >= text.size()) break;
    append_block(text.substr(0, space), ids);
    text.remove_prefix(space + (adds_prefix_space ? 1 : 0));
  }
  append_block(text, ids);
}

bool Tokenizer::Impl::pieces_end_at_spaces() const {
  const auto crosses = [&](const std::string& piece) {
    const std::size_t word = piece.find_first_not_of(' ');
    return word != std::string::npos && piece.find(' ', word) != std::string::npos;
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!processor.IsUnknown(static_cast<int>(i)) && crosses(bytes[i])) return false;
  }
  // Some models merge or drop spaces; then blocks must not be glued with one.
  std::vector<i32> ids;
  append_block("x  y", ids);
  std::string text;
  for (const i32 id : ids) text += bytes[static_cast<std::size_t>(id)];
  return text == (adds_prefix_space ? " x  y" : "x  y");
}

Tokenizer::Tokenizer(const Path& model) : impl_(std::make_unique<Impl>()) {
  const std::string name = model.string();
  std::error_code unknown;
  check_input(std::filesystem::is_symlink(model, unknown) || std::filesystem::exists(model, unknown),
              "tokenizer model ", name, ": there is no such file");
  const std::string content = read_text_file(model);
  impl_->path = model;
  impl_->checksum = checksum_hex(std::as_bytes(std::span(content)));
  check_charsmaps(content, name);
  auto& processor = impl_->processor;
  check_input(load(processor, content), "tokenizer model ", name, ": not a sentencepiece model, or damaged");

  for (int i = 0; i < processor.GetPieceSize(); ++i) {
    const std::string& piece = processor.IdToPiece(i);
    if (processor.IsByte(i)) {
      impl_->bytes.emplace_back(1, byte_of_piece(piece));
    } else if (processor.IsControl(i)) {
      impl_->bytes.emplace_back();
    } else {
      impl_->bytes.push_back(processor.IsUnknown(i) ? " \xE2\x81\x87 " : with_spaces(piece));
    }
  }
  const i32 e2 = id("<0xE2>"), b96 = id("<0x96>"), b81 = id("<0x81>");
  if (e2 >= 0 && b96 >= 0 && b81 >= 0) impl_->literal_space = {e2, b96, b81};
  std::vector<i32> probe;
  impl_->append_block("x", probe);
  impl_->adds_prefix_space = !probe.empty() && impl_->bytes[static_cast<std::size_t>(probe[0])].starts_with(' ') &&
                             !processor.IsUnknown(probe[0]);
  impl_->can_split = impl_->pieces_end_at_spaces();

  impl_->eod = id(kEodPiece);
  if (impl_->eod < 0) impl_->eod = processor.eos_id();
  check_input(impl_->eod >= 0, "tokenizer model ", name,
              ": has neither a piece <eod> nor an end-of-sentence piece, so "
              "documents cannot be told apart; train one with `megatron_cpp tokenizer`, or with the option "
              "--user_defined_symbols=<eod> of spm_train");
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

i64 Tokenizer::vocab_size() const {
  return static_cast<i64>(impl_->bytes.size());
}

i32 Tokenizer::eod() const {
  return impl_->eod;
}

i32 Tokenizer::id(std::string_view piece) const {
  const i32 id = impl_->processor.PieceToId(absl::string_view(piece.data(), piece.size()));
  return impl_->processor.IdToPiece(id) == piece ? id : -1;  // unknown pieces give the id of <unk>
}

std::string Tokenizer::piece(i32 id) const {
  check_input(id >= 0 && id < vocab_size(), "token id ", id, " is outside 0 .. ", vocab_size() - 1);
  return impl_->processor.IdToPiece(id);
}

const std::string& Tokenizer::checksum() const {
  return impl_->checksum;
}

const Path& Tokenizer::path() const {
  return impl_->path;
}

std::vector<i32> Tokenizer::encode(std::string_view text) const {
  const i64 bad = find_invalid_utf8(text);
  if (bad >= 0) {
    const auto line = 1 + std::count(text.begin(), text.begin() + bad, '\n');
    fail(ExitCode::BadInput, "the text is not UTF-8 at byte ", bad, " (line ", line, ")");
  }
  // sentencepiece would turn a U+2581 of the text into a space: spelled in bytes, it comes back as what it was.
  std::vector<i32> ids;
  if (!impl_->adds_prefix_space && !impl_->literal_space.empty()) {
    for (std::size_t at = text.find(kSpaceMark); at != std::string_view::npos; at = text.find(kSpaceMark)) {
      impl_->append_encoded(text.substr(0, at), ids);
      ids.insert(ids.end(), impl_->literal_space.begin(), impl_->literal_space.end());
      text.remove_prefix(at + kSpaceMark.size());
    }
  }
  impl_->append_encoded(text, ids);
  return ids;
}

std::string_view Tokenizer::bytes_of(i32 id, bool is_first) const {
  check_input(id >= 0 && id < vocab_size(), "token id ", id, " is outside 0 .. ", vocab_size() - 1);
  std::string_view bytes = impl_->bytes[static_cast<std::size_t>(id)];
  if (is_first && impl_->adds_prefix_space && bytes.starts_with(' ')) bytes.remove_prefix(1);
  return bytes;
}

std::string Tokenizer::decode(std::span<const i32> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (const i32 id : ids) text += decoder.add(id);
  return text + decoder.finish();
}

std::string StreamDecoder::add(i32 id) {
  held_ += tokenizer_.bytes_of(id, is_first_);
  if (!tokenizer_.impl_->processor.IsControl(id)) is_first_ = false;
  const auto whole = held_.size() - static_cast<std::size_t>(utf8_incomplete_suffix(held_));
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(held_);
  held_.clear();
  is_first_ = true;
  return text;
}

}  // namespace mcpp

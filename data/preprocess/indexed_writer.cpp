#include "data/preprocess/indexed_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
/// Buffer size for tokens; small enough that they are still in the processor's cache when written.
constexpr std::size_t kTokenBufferBytes = std::size_t{64} << 10;

/// Collects small values into large writes.
class BufferedWriter {
 public:
  explicit BufferedWriter(AtomicFile& file) : file_(file), buffer_(kBufferBytes) {}
  template <class T>
  void put(T value) {
    if (buffer_.size() - used_ < sizeof(T)) flush();
    std::memcpy(buffer_.data() + used_, &value, sizeof(T));
    used_ += sizeof(T);
  }
  void flush() {
    file_.write(std::span(buffer_).first(used_));
    used_ = 0;
  }

 private:
  AtomicFile& file_;
  std::vector<std::byte> buffer_;
  std::size_t used_ = 0;
};

template <class T>
void append_as(std::vector<std::byte>& buffer, std::span<const i32> tokens) {
  const std::size_t begin = buffer.size();
  buffer.resize(begin + tokens.size() * sizeof(T));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto value = static_cast<T>(tokens[i]);
    std::memcpy(buffer.data() + begin + i * sizeof(T), &value, sizeof(T));
  }
}

void write_index(const IndexContent& index, AtomicFile& file) {
  BufferedWriter out(file);
  for (const char c : kIndexMagic) out.put(c);
  out.put(u64{1});
  out.put(static_cast<u8>(index.type));
  out.put(static_cast<u64>(index.lengths.size()));
  out.put(static_cast<u64>(index.sequences_in_document.size() + 1));
  for (const i32 length : index.lengths) out.put(length);
  i64 offset = 0;
  for (const i32 length : index.lengths) {
    out.put(offset);
    offset += length * token_bytes(index.type);
  }
  i64 sequence = 0;
  out.put(sequence);
  for (const i32 count : index.sequences_in_document) out.put(sequence += count);
  out.flush();
}

}  // namespace

void publish_dataset(const Path& prefix, const IndexContent& index, const std::function<void()>& commit_bin) {
  AtomicFile idx(idx_path(prefix));
  write_index(index, idx);
  // A crash between the two renames leaves no .idx rather than a mismatched pair.
  retract_dataset(prefix);
  commit_bin();
  try {
    idx.commit();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(bin_path(prefix), ignored);
    throw;
  }
}

void retract_dataset(const Path& prefix) {
  std::error_code ignored;
  std::filesystem::remove(idx_path(prefix), ignored);
}

TokenSequenceEncoder::TokenSequenceEncoder(std::string name, i64 vocab_size, Sink sink)
    : name_(std::move(name)),
      vocab_size_(vocab_size),
      sink_(std::move(sink)),
      index_{token_type_for_vocab(vocab_size), {}, {}} {
  MCPP_CHECK(vocab_size >= 1, "vocab_size ", vocab_size);
}

void TokenSequenceEncoder::add_tokens(std::span<const i32> tokens) {
  for (const i32 token : tokens) {
    check_input(token >= 0 && token < vocab_size_, name_, ": document ", num_documents(), ": token id ", token,
                " is outside 0 .. ", vocab_size_ - 1);
  }
  open_tokens_ += static_cast<i64>(tokens.size());
  check_input(open_tokens_ <= std::numeric_limits<i32>::max(), name_, ": document ", num_documents(),
              " has more than 2147483647 tokens, which the .idx format cannot hold; split the text into several "
              "documents");
  if (index_.type == TokenType::U16) {
    append_as<u16>(buffer_, tokens);
  } else {
    append_as<i32>(buffer_, tokens);
  }
  if (buffer_.size() >= kTokenBufferBytes) flush();
}

void TokenSequenceEncoder::flush() {
  sink_(buffer_);
  buffer_.clear();
}

void TokenSequenceEncoder::end_sequence() {
  index_.lengths.push_back(static_cast<i32>(open_tokens_));
  tokens_ += open_tokens_;
  open_tokens_ = 0;
  ++open_sequences_;
}

void TokenSequenceEncoder::end_document() {
  MCPP_CHECK(open_tokens_ == 0, "end_document() called inside a sequence");
  index_.sequences_in_document.push_back(open_sequences_);
  open_sequences_ = 0;
}

IndexedDatasetWriter::IndexedDatasetWriter(const Path& prefix, i64 vocab_size)
    : TokenSequenceEncoder(prefix.string(), vocab_size,
                           [this](std::span<const std::byte> bytes) { bin_->write(bytes); }),
      prefix_(prefix) {
  if (prefix.has_parent_path()) mcpp::create_directories(prefix.parent_path());
  bin_.emplace(bin_path(prefix));
}

void IndexedDatasetWriter::finish() {
  MCPP_CHECK(bin_ && !is_in_document(), "finish() called inside a document, or twice");
  flush();
  publish_dataset(prefix_, index(), [&] {
    bin_->commit();
    bin_.reset();
  });
}

ChunkTokenizer::ChunkTokenizer(DocumentFormat format, const ConversationFormat& conversation,
                               StoredRef<Tokenizer> tokenizer)
    : format_(std::move(format)), tokenizer_(tokenizer) {
  if (conversation.content != JsonContent::Text) conversations_.emplace(conversation, tokenizer);
}

TokenizedChunk ChunkTokenizer::tokenize_conversations(InputFiles::Chunk raw) const {
  TokenizedChunk result;
  result.progress = raw.progress;
  result.by_key.resize(2);
  for_each_json_line(raw.path, std::move(raw.chunk), format_, result.malformed,
                     [&](std::string_view line, std::string& problem) {
                       MaskedTokens document = conversations_->encode(line, problem);
                       if (!problem.empty()) return;
                       const i64 targets = std::ranges::count(document.targets, 1);
                       result.by_key[0].push_back({.tokens = std::move(document.targets), .targets = targets});
                       result.by_key[1].push_back({.tokens = std::move(document.tokens),
                                                   .bytes = document.bytes,
                                                   .words = document.words,
                                                   .targets = targets});
                     });
  return result;
}

TokenizedChunk ChunkTokenizer::tokenize(InputFiles::Chunk raw) const {
  if (conversations_) return tokenize_conversations(std::move(raw));
  ChunkDocuments documents = parse_chunk(raw.path, std::move(raw.chunk), format_);
  TokenizedChunk result;
  result.malformed = documents.malformed;
  result.progress = raw.progress;
  for (const auto& segments : documents.by_key) {
    auto& out = result.by_key.emplace_back();
    for (const Segment& segment : segments) {
      const TextPart part{segment.begins_document, segment.ends_document, segment.text_before};
      out.push_back({.tokens = tokenizer_.encode(segment.text, part),
                     .bytes = std::ssize(segment.text),
                     .words = count_words(segment.text),
                     .ends_document = segment.ends_document});
    }
  }
  return result;
}

DocumentWriter::DocumentWriter(TokenSequenceEncoder& sequences, const DocumentOutputRules& rules,
                               const Tokenizer& tokenizer, bool continues_document)
    : sequences_(sequences), rules_(rules), is_head_(continues_document) {
  info_.tokenizer_checksum = tokenizer.checksum();
  info_.vocab_size = rules.vocab_size_with(tokenizer);
  info_.eod = tokenizer.eod();
  info_.append_eod = rules.append_eod;
  if (rules.has_loss_mask) info_.targets = 0;
}

void DocumentWriter::add(const TokenSegment& segment) {
  sequences_.add_tokens(segment.tokens);
  info_.source_bytes += segment.bytes;
  info_.source_words += segment.words;
  if (rules_.has_loss_mask) info_.targets += segment.targets;
  is_open_ = true;
  if (segment.ends_document) end_document();
}

void DocumentWriter::end_document() {
  is_open_ = false;
  // The assembler, which sees all of the document, decides if it is empty and appends its <eod>.
  if (std::exchange(is_head_, false)) {
    sequences_.end_sequence();
    return sequences_.end_document();
  }
  if (sequences_.open_tokens() == 0) {  // Megatron-LM records an empty document without <eod>
    ++empty_documents_;
    if (rules_.keep_empty) sequences_.end_document();
    return;
  }
  if (rules_.append_eod && !rules_.has_eod) sequences_.add_tokens(std::vector{static_cast<i32>(info_.eod)});
  sequences_.end_sequence();
  sequences_.end_document();
}

bool DocumentWriter::end_open_document() {
  if (!is_open_) return false;
  sequences_.end_sequence();
  sequences_.end_document();
  is_open_ = false;
  return true;
}

DatasetInfo DocumentWriter::info() const {
  DatasetInfo info = info_;
  info.documents = documents();
  info.tokens = tokens();
  return info;
}

}  // namespace mcpp

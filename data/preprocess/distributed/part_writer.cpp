#include "data/preprocess/distributed/part_writer.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
#include "data/preprocess/indexed_writer.h"

namespace mcpp {

bool TokenMemory::reserve(i64 bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return used_ + bytes <= limit_ || !is_writing_; });
  if (used_ + bytes > limit_) return false;
  used_ += bytes;
  return true;
}

void TokenMemory::release(i64 bytes) {
  {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
  }
  changed_.notify_all();
}

std::vector<std::byte> TokenMemory::buffer() {
  const std::lock_guard lock(mutex_);
  if (free_buffers_.empty()) return {};
  std::vector<std::byte> buffer = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  return buffer;
}

void TokenMemory::keep(std::vector<std::byte> buffer) {
  constexpr std::size_t kMaxKeptBuffers = 4;
  buffer.clear();
  const std::lock_guard lock(mutex_);
  if (free_buffers_.size() < kMaxKeptBuffers) free_buffers_.push_back(std::move(buffer));
}

void TokenMemory::set_writing(bool is_writing) {
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = is_writing;
  }
  changed_.notify_all();
}

UnitTokens::UnitTokens(const PartsFolder& folder, const WorkUnit& unit, TokenMemory& memory)
    : folder_(folder), unit_(unit), memory_(memory) {
  for (std::size_t k = 0; k < folder.keys().size(); ++k) in_memory_.push_back(memory.buffer());
}

UnitTokens::~UnitTokens() {
  for (std::vector<std::byte>& bytes : in_memory_)
    if (bytes.capacity() > 0) memory_.keep(std::move(bytes));
  memory_.release(reserved_bytes_);
}

void UnitTokens::add(std::size_t key, std::span<const std::byte> bytes) {
  const i64 size = std::ssize(bytes);
  if (spill_files_.empty() && !memory_.reserve(size)) spill_to_files();
  if (!spill_files_.empty()) return spill_files_[key]->write(bytes);
  reserved_bytes_ += size;
  // usually sufficient; untouched pages cost nothing
  in_memory_[key].reserve(static_cast<std::size_t>(unit_.bytes));
  in_memory_[key].insert(in_memory_[key].end(), bytes.begin(), bytes.end());
}

void UnitTokens::spill_to_files() {
  for (std::size_t k = 0; k < in_memory_.size(); ++k) {
    spill_files_.push_back(std::make_unique<AtomicFile>(folder_.tokens_path(unit_, folder_.keys()[k])));
    spill_files_[k]->write(in_memory_[k]);
    std::vector<std::byte>().swap(in_memory_[k]);
  }
  memory_.release(std::exchange(reserved_bytes_, 0));
}

void UnitTokens::finish(PartContent part) {
  part_ = std::move(part);
  if (spill_files_.empty()) return;
  for (const auto& file : spill_files_) file->commit();
  folder_.write_part(unit_, part_);
  map_files();
}

void UnitTokens::map_files() {
  for (const std::string& key : folder_.keys()) mapped_files_.emplace_back(folder_.tokens_path(unit_, key));
}

std::span<const std::byte> UnitTokens::bytes(std::size_t key) const {
  return mapped_files_.empty() ? in_memory_[key] : mapped_files_[key].bytes();
}

std::unique_ptr<UnitTokens> UnitTokens::reopen_spilled(const PartsFolder& folder, const WorkUnit& unit,
                                                       TokenMemory& memory) {
  if (!folder.read_metadata(unit)) return nullptr;
  auto tokens = std::make_unique<UnitTokens>(folder, unit, memory);
  tokens->part_ = folder.read_part(unit);
  tokens->map_files();
  return tokens;
}

namespace {

/// Reads the chunks of one unit.
class UnitReader {
 public:
  UnitReader(const WorkUnit& unit, const TextRange& range, const DocumentFormat& format)
      : source_(unit.path, range),
        is_json_lines_(unit.is_json_lines),
        split_mode_(split_mode_for(unit.is_json_lines, format)),
        begin_(source_.bytes_consumed()) {}

  std::optional<InputFiles::Chunk> next() {
    InputFiles::Chunk chunk{.path = source_.path(), .chunk = {}, .progress = 0};
    chunk.chunk.is_json_lines = is_json_lines_;
    if (!source_.next(chunk.chunk, kTokenizedChunkBytes, split_mode_)) return std::nullopt;
    chunk.progress = source_.bytes_consumed() - begin_;
    return chunk;
  }

 private:
  TextSource source_;
  bool is_json_lines_;
  SplitMode split_mode_;
  u64 begin_;
};

/// State of one key of a unit during tokenization.
class KeyTokenizer {
 public:
  KeyTokenizer(std::string name, bool continues_document, const DocumentOutputRules& rules, const Tokenizer& tokenizer,
               TokenSequenceEncoder::Sink sink)
      : continues_document_(continues_document),
        sequences_(std::move(name), rules.vocab_size_with(tokenizer), std::move(sink)),
        documents_(sequences_, rules, tokenizer, continues_document) {}

  void add(const TokenSegment& segment) {
    const bool is_head = !documents_.has_head_ended();
    documents_.add(segment);
    if (is_head) head_tokens_ = documents_.tokens();
    if (segment.ends_document) closed_tokens_ = documents_.tokens();
  }
  KeyPart finish() {
    KeyPart key;
    key.continues_document = continues_document_;
    key.is_head_complete = continues_document_ && documents_.has_head_ended();
    key.head_tokens = head_tokens_;
    key.empty_documents = documents_.empty_documents();
    key.is_open = documents_.end_open_document();
    if (key.is_open && !(continues_document_ && !key.is_head_complete))
      key.open_tokens = documents_.tokens() - closed_tokens_;
    sequences_.flush();
    key.info = documents_.info();
    key.info.documents = std::ssize(lengths(key));
    return key;
  }
  /// Returns the lengths of the documents that lie entirely within this unit.
  std::vector<i32> lengths(const KeyPart& key) const {
    const IndexContent& index = sequences_.index();
    std::vector<i32> lengths;
    std::size_t sequence = 0;
    for (const i32 sequences : index.sequences_in_document)
      lengths.push_back(sequences > 0 ? index.lengths[sequence++] : 0);
    if (key.is_open && !lengths.empty()) lengths.pop_back();
    if (key.is_head_complete) lengths.erase(lengths.begin());
    return lengths;
  }

 private:
  bool continues_document_;
  TokenSequenceEncoder sequences_;
  DocumentWriter documents_;
  i64 head_tokens_ = 0;    // tokens of the first document, if continued
  i64 closed_tokens_ = 0;  // tokens of all documents that ended
};

std::unique_ptr<UnitTokens> tokenize_range(const PartsFolder& folder, const WorkUnit& unit, const TextRange& range,
                                           const Tokenizer& tokenizer, i64 workers, TokenMemory& memory,
                                           const std::function<void(i64)>& progress) {
  const PreprocessOptions& options = folder.options();
  const DocumentFormat format = options.format();
  auto tokens = std::make_unique<UnitTokens>(folder, unit, memory);
  std::vector<std::unique_ptr<KeyTokenizer>> keys;
  for (std::size_t k = 0; k < folder.keys().size(); ++k) {
    keys.push_back(
        std::make_unique<KeyTokenizer>(str(unit.path.string(), ", for ", options.dataset_prefix(folder.keys()[k])),
                                       !range.begins_document, options.rules_of(folder.keys()[k]), tokenizer,
                                       [&, k](std::span<const std::byte> bytes) { tokens->add(k, bytes); }));
  }
  const ChunkTokenizer tokenized(format, options.conversation(), tokenizer);
  PartContent part;
  UnitReader reader(unit, range, format);
  ordered_parallel(
      workers, [&] { return reader.next(); }, [&](InputFiles::Chunk raw) { return tokenized.tokenize(std::move(raw)); },
      [&](const TokenizedChunk& chunk) {
        for (std::size_t k = 0; k < chunk.by_key.size(); ++k)
          for (const TokenSegment& segment : chunk.by_key[k]) keys[k]->add(segment);
        part.metadata.malformed_lines += chunk.malformed;
        progress(static_cast<i64>(chunk.progress));
      });
  for (const auto& key : keys) {
    part.metadata.keys.push_back(key->finish());
    part.lengths.push_back(key->lengths(part.metadata.keys.back()));
  }
  check_file_unchanged(unit);
  tokens->finish(std::move(part));
  return tokens;
}

}  // namespace

std::unique_ptr<UnitTokens> tokenize_unit(const PartsFolder& folder, const WorkUnit& unit, const Tokenizer& tokenizer,
                                          i64 workers, TokenMemory& memory,
                                          const std::function<void(i64 bytes)>& progress) {
  if (auto tokens = UnitTokens::reopen_spilled(folder, unit, memory)) return tokens;
  const auto tokenized = [&](const TextRange& range) {
    return tokenize_range(folder, unit, range, tokenizer, workers, memory, progress);
  };
  check_file_unchanged(unit);
  try {
    return tokenized(unit.range);
  } catch (const Error& error) {
    if (error.code() != ExitCode::BadInput || unit.range.begin == 0) throw;
    tokenized(add_line_number(unit.path, unit.range));  // fails again, with line numbers relative to the file
    throw;
  }
}

namespace {

std::vector<std::byte> token_as_bytes(i64 token, TokenType type) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(token_bytes(type)));
  std::memcpy(bytes.data(), &token, bytes.size());  // little endian, like the files
  return bytes;
}

/// Returns the subrange of `bytes`, which start at file offset `at`, within [from, to).
std::span<const std::byte> clip_to_range(i64 from, i64 to, i64 at, std::span<const std::byte> bytes) {
  const i64 size = std::ssize(bytes);
  const i64 first = std::clamp<i64>(from - at, 0, size), last = std::clamp<i64>(to - at, first, size);
  return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

}  // namespace

PartWriter::PartWriter(const PartsFolder& folder) : folder_(folder) {
  for (const std::string& key : folder.keys())
    output_files_.push_back(std::make_unique<SharedOutputFile>(folder.shared_output_path(key)));
}

void PartWriter::write(const UnitTokens& tokens, const std::vector<OutputRange>& output_ranges) {
  PartContent part = tokens.part();
  part.metadata.output_ranges = output_ranges;
  for (std::size_t k = 0; k < output_ranges.size(); ++k)
    part.edges.push_back(write_blocks(k, tokens, output_ranges[k]));
  for (std::size_t k = 0; k < output_ranges.size(); ++k)
    if (std::ssize(part.edges[k]) < output_ranges[k].end - output_ranges[k].begin) output_files_[k]->sync();
  folder_.write_part(tokens.unit(), part);
  folder_.remove_tokens(tokens.unit());
}

std::vector<std::byte> PartWriter::write_blocks(std::size_t key, const UnitTokens& tokens,
                                                const OutputRange& output_range) {
  const KeyPart& part = tokens.part().metadata.keys[key];
  const TokenType type = part.token_type();
  const std::span<const std::byte> all = tokens.bytes(key);
  const auto head = static_cast<std::size_t>(part.head_tokens * token_bytes(type));
  std::vector<std::byte> eod;  // ends the document that ends with the head
  if (output_range.end - output_range.begin > std::ssize(all)) eod = token_as_bytes(part.info.eod, type);

  const AlignedBlockRange blocks(output_range.begin, output_range.end);
  std::vector<std::byte> edges;
  i64 at = output_range.begin;
  for (const std::span<const std::byte> bytes : {all.first(head), std::span<const std::byte>(eod), all.subspan(head)}) {
    const auto before = clip_to_range(output_range.begin, blocks.begin, at, bytes),
               after = clip_to_range(blocks.end, output_range.end, at, bytes),
               inside = clip_to_range(blocks.begin, blocks.end, at, bytes);
    edges.insert(edges.end(), before.begin(), before.end());
    if (!inside.empty()) output_files_[key]->write_at(std::max(at, blocks.begin), inside);
    edges.insert(edges.end(), after.begin(), after.end());
    at += std::ssize(bytes);
  }
  return edges;
}

}  // namespace mcpp

#include "data/preprocess/training/training_text.h"

#include <sentencepiece_trainer.h>

#include <cctype>
#include <deque>
#include <unordered_map>

#include "base/strings.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "data/tokenizer/bpe/normalizer.h"
#include "data/tokenizer/bpe/pre_tokenizer.h"

namespace mcpp {
namespace {

constexpr std::size_t kBlockBytes = 4096;  // also bounds words: the library counts only up to 65535
// Target size of parts. For a text that repeats, the library scans the rest of the sentence, and it does not consider
// strings that always continue identically, as words before a space do. In short parts some of them end and can become
// chunks.
constexpr std::size_t kPartBytes = 128;
// Characters that sentencepiece uses internally as markers; it would drop sentences that contain them.
constexpr std::string_view kReserved[] = {"\t", std::string_view("\0", 1), "\xE2\x96\x85", "\xE2\x96\x81"};

/// Returns the position and length of the first reserved character.
std::pair<std::size_t, std::size_t> find_reserved(std::string_view text) {
  std::pair<std::size_t, std::size_t> first(text.size(), 0);
  for (const std::string_view reserved : kReserved) {
    const std::size_t position = text.substr(0, first.first).find(reserved);
    if (position != std::string_view::npos) first = {position, reserved.size()};
  }
  return first;
}

/// Calls visit(part) for the text between reserved characters, which are left to the byte pieces.
template <class Visit>
void for_each_unreserved(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const auto [end, skip] = find_reserved(text);
    if (end > 0) visit(text.substr(0, end));
    text.remove_prefix(end + skip);
  }
}

bool is_punctuation(char c) {
  return std::ispunct(static_cast<unsigned char>(c)) != 0;
}

/// Calls visit(part) for parts that begin with a line ending such as ",\n" or "!\n\n", except after a space, where the
/// library begins a word anyway. Training time depends on the number of distinct words: "word,\nNext" rarely repeats,
/// while "word" and ",\nNext" do.
template <class Visit>
void for_each_line_end(std::string_view text, Visit&& visit) {
  std::size_t begin = 0;
  for (std::size_t at = text.find('\n'); at < text.size(); at = text.find('\n', text.find_first_not_of('\n', at))) {
    std::size_t end = at;
    while (end > begin && is_punctuation(text[end - 1])) --end;
    if (end == begin || text[end - 1] == ' ') continue;
    visit(text.substr(begin, end - begin));
    begin = end;
  }
  visit(text.substr(begin));
}

/// Calls visit(part) for parts of slightly more than kPartBytes that begin with spaces, which no piece crosses.
template <class Visit>
void for_each_part(std::string_view text, Visit&& visit) {
  while (text.size() > kPartBytes) {
    std::size_t end = text.find(' ', kPartBytes);
    while (end < text.size() && text[end - 1] == ' ') end = text.find(' ', end + 1);
    if (end >= text.size()) break;
    visit(text.substr(0, end));
    text.remove_prefix(end);
  }
  visit(text);
}

/// Appends blocks of at most kBlockBytes, which end after a line, else before a space, else between characters. Splits
/// these at line endings and, in long lines, before spaces.
void append_blocks(std::string_view text, std::deque<std::string>& blocks) {
  const auto append = [&](std::string_view block) {
    for_each_line_end(block, [&](std::string_view line) {
      for_each_part(line, [&](std::string_view part) { blocks.emplace_back(part); });
    });
  };
  while (text.size() > kBlockBytes) {
    const std::string_view head = text.substr(0, kBlockBytes);
    std::size_t end = head.rfind('\n') + 1;  // npos + 1 is 0
    if (end == 0 && head.find(' ', 1) != std::string_view::npos) end = head.rfind(' ');
    if (end == 0) end = utf8_boundary(text, kBlockBytes);
    for_each_unreserved(text.substr(0, end), append);
    text.remove_prefix(end);
  }
  for_each_unreserved(text, append);
}

/// Returns the size in bytes of the first word of `text`: leading spaces and the text up to the next space or line end;
/// if only punctuation is left on the line, the punctuation and its newlines.
std::size_t word_size(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
  std::size_t size = end;
  if (end < text.size() && text[end] == '\n') {
    while (size > begin && is_punctuation(text[size - 1])) --size;
    if (size == begin) size = std::min(text.find_first_not_of('\n', end), text.size());
  }
  return size <= kBlockBytes ? size : utf8_boundary(text, kBlockBytes);
}

class BlockIterator : public sentencepiece::SentenceIterator {
 public:
  BlockIterator(InputFiles& files, TokenizerTrainingProgress& progress) : files_(files), progress_(progress) {
    advance();
  }
  bool done() const override { return blocks_.empty(); }
  void Next() override {
    blocks_.pop_front();
    advance();
  }
  const std::string& value() const override { return blocks_.front(); }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void advance() {
    while (blocks_.empty()) {
      std::optional<InputFiles::Chunk> read = files_.next();
      if (!read) return progress_.training();
      progress_.reading(read->progress, files_.total_bytes());
      for (const auto& segments : parse_chunk(read->path, std::move(read->chunk), files_.format()).by_key) {
        for (const Segment& segment : segments) append_blocks(segment.text, blocks_);
      }
    }
  }

  InputFiles& files_;
  TokenizerTrainingProgress& progress_;
  std::deque<std::string> blocks_;
};

/// Words of a chunk of a file and their counts.
struct CountedChunk {
  ChunkDocuments documents;            // owns the text that the words refer to
  std::deque<std::string> normalized;  // or this, if normalized
  std::unordered_map<std::string_view, i64> counts;
  u64 progress = 0;
};

CountedChunk count_chunk_words(InputFiles::Chunk read, const DocumentFormat& format) {
  CountedChunk counted;
  counted.documents = parse_chunk(read.path, std::move(read.chunk), format);
  counted.progress = read.progress;
  for (const auto& segments : counted.documents.by_key) {
    for (const Segment& segment : segments) {
      for_each_unreserved(segment.text, [&](std::string_view part) {
        for (std::size_t size = 0; !part.empty(); part.remove_prefix(size)) {
          size = word_size(part);
          ++counted.counts[part.substr(0, size)];
        }
      });
    }
  }
  return counted;
}

/// Returns the sum of count(chunk) over all chunks, computed on `threads` threads.
template <class Count>
WordCounts count_all(InputFiles& files, i64 threads, TokenizerTrainingProgress& progress, Count&& count) {
  WordCounts counts;
  ordered_parallel(
      threads, [&] { return files.next(); }, count,
      [&](const CountedChunk& chunk) {
        for (const auto& [word, times] : chunk.counts) {
          const auto known = counts.find(word);
          if (known != counts.end())
            known->second += times;
          else
            counts.emplace(word, times);
        }
        progress.reading(chunk.progress, files.total_bytes());
      });
  progress.training();
  return counts;
}

class ByteWords final : public WordSink {
 public:
  explicit ByteWords(PreTokenization rules) {
    BpeDescription description;
    set_rules(description, rules);
    normalizer_.emplace(description.normalizer, description.rules);
    pre_tokenizer_.emplace(description.pre_tokenizer, description.rules);
  }
  void count_in(const std::string& text, CountedChunk& counted) {
    counts_ = &counted.counts;
    std::string& buffer = counted.normalized.emplace_back();
    constexpr SegmentStart kStart = SegmentStart::Document;
    pre_tokenizer_->split(normalizer_->apply(text, kStart, buffer, memory_), kStart, memory_, *this);
  }
  void add_word(std::string_view word) override { ++(*counts_)[word]; }

 private:
  std::optional<Normalizer> normalizer_;
  std::optional<PreTokenizer> pre_tokenizer_;
  RegexMemory memory_;
  std::unordered_map<std::string_view, i64>* counts_ = nullptr;
};

class WordIterator : public sentencepiece::SentenceIterator {
 public:
  explicit WordIterator(WordCounts counts) : counts_(std::move(counts)), next_(counts_.begin()) { write_line(); }
  bool done() const override { return next_ == counts_.end(); }
  void Next() override {
    ++next_;
    write_line();
  }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void write_line() {
    if (!done()) line_ = str(next_->first, "\t", next_->second);
  }

  WordCounts counts_;
  WordCounts::const_iterator next_;
  std::string line_;
};

}  // namespace

std::unique_ptr<sentencepiece::SentenceIterator> make_block_iterator(InputFiles& files,
                                                                     TokenizerTrainingProgress& progress) {
  return std::make_unique<BlockIterator>(files, progress);
}

std::unique_ptr<sentencepiece::SentenceIterator> make_word_iterator(InputFiles& files, i64 threads,
                                                                    TokenizerTrainingProgress& progress) {
  WordCounts counts = count_all(files, threads, progress, [&](InputFiles::Chunk read) {
    return count_chunk_words(std::move(read), files.format());
  });
  return std::make_unique<WordIterator>(std::move(counts));
}

WordCounts count_byte_words(InputFiles& files, PreTokenization rules, i64 threads,
                            TokenizerTrainingProgress& progress) {
  return count_all(files, threads, progress, [&](InputFiles::Chunk read) {
    CountedChunk counted;
    counted.documents = parse_chunk(read.path, std::move(read.chunk), files.format());
    counted.progress = read.progress;
    ByteWords words(rules);
    for (const auto& segments : counted.documents.by_key)
      for (const Segment& segment : segments) words.count_in(segment.text, counted);
    return counted;
  });
}

}  // namespace mcpp

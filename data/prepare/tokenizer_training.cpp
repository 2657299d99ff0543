#include "data/prepare/tokenizer_training.h"

#include <sentencepiece_trainer.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/check.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/prepare/input_files.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {
namespace {

// Text is fed in blocks of several whole lines, newlines kept. So ":\n" or ".\n\n" can become pieces: on English drama
// 9 % (unigram) and 2 % (bpe) fewer tokens than with sentencepiece's own reading line by line, where a newline is never
// seen.
constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
// Longer blocks would be dropped by sentencepiece without a word; cut() makes none.
constexpr const char* kMaxSentenceBytes = "1000000";
// sentencepiece uses these characters as marks inside its trainers and would leave out the blocks that contain them.
constexpr std::string_view kReserved[] = {"\t", std::string_view("\0", 1), "\xE2\x96\x85", "\xE2\x96\x81"};

/// Splits at reserved characters, which are left to the byte pieces.
void append_without_reserved(std::string_view text, std::deque<std::string>& blocks) {
  while (!text.empty()) {
    std::size_t end = text.size(), skip = 0;
    for (const std::string_view reserved : kReserved) {
      const std::size_t found = text.find(reserved);
      if (found < end) end = found, skip = reserved.size();
    }
    if (end > 0) blocks.emplace_back(text.substr(0, end));
    text.remove_prefix(end + skip);
  }
}

/// Blocks of about kBlockBytes, cut after a line, else before a space, else between characters.
void append_blocks(std::string_view text, std::deque<std::string>& blocks) {
  while (text.size() > kBlockBytes) {
    const std::string_view head = text.substr(0, kBlockBytes);
    std::size_t end = head.rfind('\n') + 1;  // npos + 1 == 0
    if (end == 0 && head.find(' ', 1) != std::string_view::npos) end = head.rfind(' ');
    if (end == 0) end = utf8_boundary(text, kBlockBytes);
    append_without_reserved(text.substr(0, end), blocks);
    text.remove_prefix(end);
  }
  append_without_reserved(text, blocks);
}

/// The live line of a terminal while the library trains, which does not say how far it is.
class Progress {
 public:
  explicit Progress(const Log& log) : log_(log) {}

  void reading(u64 done_bytes, u64 total_bytes) {
    if (!log_.is_live() || seconds() < next_) return;
    next_ = seconds() + 1;
    log_.progress(str("tokenizer: reading, ", describe_progress(done_bytes, total_bytes, seconds())));
  }
  /// From here on a thread shows that time passes.
  void training() {
    if (!log_.is_live() || ticker_.joinable()) return;
    ticker_ = std::jthread([this](const std::stop_token& stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any stopped;
      do {
        log_.progress(str("tokenizer: all is read, training since ", human_seconds(seconds())));
      } while (!stopped.wait_for(lock, stop, std::chrono::seconds(1), [&] { return stop.stop_requested(); }));
    });
  }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  const Log& log_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_ = 0;
  std::jthread ticker_;  // last: it uses all of the above
};

/// The documents of all input files as training blocks, read as they are asked for.
class BlockIterator : public sentencepiece::SentenceIterator {
 public:
  BlockIterator(const TokenizerOptions& options, Progress& progress)
      : files_(options.input, {.json_keys = options.json_keys}, kPieceBytes), progress_(progress) {
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
      std::optional<InputFiles::Piece> read = files_.next();
      if (!read) return progress_.training();
      progress_.reading(read->progress, files_.total_bytes());
      for (const auto& segments : parse_piece(read->path, std::move(read->piece), files_.format()).by_key) {
        for (const Segment& segment : segments) append_blocks(segment.text, blocks_);
      }
    }
  }

  InputFiles files_;
  Progress& progress_;
  std::deque<std::string> blocks_;
};

std::unordered_map<std::string, std::string> trainer_arguments(const TokenizerOptions& options) {
  return {{"model_type", std::string(enum_name(options.model_type))},
          {"vocab_size", str(options.vocab_size)},
          {"character_coverage", str(options.character_coverage)},
          {"byte_fallback", options.byte_fallback ? "true" : "false"},
          {"num_threads", str(options.num_threads)},
          {"max_sentence_length", kMaxSentenceBytes},
          // Nothing of the text may be changed on the way in or out.
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"allow_whitespace_only_pieces", "true"},
          // <eod> is the end-of-sentence piece under another name: programs that know neither of us find it too. As a
          // control piece it never comes out of text, whatever the text says.
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"eos_piece", std::string(kEodPiece)},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"minloglevel", "2"}};
}

/// The number after `mark` in sentencepiece's message.
std::string number_after(const std::string& message, std::string_view mark) {
  const std::size_t at = message.find(mark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + mark.size();
  return message.substr(begin, message.find_first_not_of("0123456789", begin) - begin);
}

[[noreturn]] void explain(const std::string& message, const TokenizerOptions& options) {
  const std::string most = number_after(message, "set it to a value <= ");
  check_input(most.empty(), "vocab_size ", options.vocab_size, " is too large for this text, which gives only ", most,
              " pieces; use a smaller vocab_size or more text");
  const std::string least = number_after(message, str("required_chars. ", options.vocab_size, " vs "));
  check_input(least.empty(), "vocab_size ", options.vocab_size, " is too small: the single characters of this text",
              options.byte_fallback ? " and the 256 bytes" : "", " alone need more than ", least,
              " pieces; use a larger vocab_size or a lower character_coverage");
  fail(ExitCode::BadInput, "sentencepiece cannot train on this text: ", message);
}

}  // namespace

void train_tokenizer(const TokenizerOptions& options, const Log& log) {
  check_input(!options.input.empty(), "tokenizer: input is empty; give text files");
  check_input(!options.output.empty(), "tokenizer: output is empty; give the model file to write");
  Progress progress(log);
  BlockIterator blocks(options, progress);
  check_input(!blocks.done(), "tokenizer: there is no text in ", join(options.input, ", "));
  log.info(str("training a ", enum_name(options.model_type), " tokenizer of ", options.vocab_size, " pieces"));
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(trainer_arguments(options), &blocks, &model);
  if (!status.ok()) explain(status.ToString(), options);
  round_scores(model, options.output);
  const Path output = options.output;
  if (output.has_parent_path()) mcpp::create_directories(output.parent_path());
  write_file_atomic(output, model);
  log.info(str("wrote ", options.output));
}

}  // namespace mcpp

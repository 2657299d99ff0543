#include "data/preprocess/training/tokenizer_training.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/preprocess/input_files.h"
#include "data/preprocess/training/training_text.h"
#include "data/tokenizer/bpe/byte_characters.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {
namespace {

using Pair = u64;  // left id in the upper half: sorts as (left, right)

Pair pack_pair(u32 left, u32 right) {
  return Pair{left} << 32 | right;
}

/// Pair to be merged with the words that contained it when it was queued. A pair that appears later in other words is
/// queued again separately: `tokenizers` does so, and the learned merges depend on it.
struct Candidate {
  i64 count = 0;
  Pair pair = 0;
  std::vector<u32> words;

  /// Orders by count; ties go to the pair of lowest ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const std::vector<std::string>& special_tokens);
  void merge_until(i64 vocab_size, i64 min_frequency);
  BpeDescription description() const;

 private:
  using WordsOfPair = std::unordered_map<Pair, std::vector<u32>>;

  u32 id_of(const std::string& piece);
  void count_pairs();
  void push_found(WordsOfPair& found);
  void push(Candidate candidate);
  Candidate pop();
  void merge(const Candidate& candidate);
  void change(Pair pair, i64 by, u32 word, WordsOfPair& found);
  void merge_in_word(u32 word, Pair pair, u32 result, WordsOfPair& found);

  std::size_t special_;
  std::vector<std::string> pieces_;  // bytes, except for special tokens
  std::unordered_map<std::string, u32> ids_;
  std::vector<std::vector<u32>> words_;  // current pieces of each word
  std::vector<i64> counts_;              // occurrences of each word
  std::unordered_map<Pair, i64> pair_counts_;
  std::vector<Candidate> queue_;  // binary heap
  std::vector<std::pair<Pair, u32>> merges_;
};

Trainer::Trainer(const WordCounts& words, const std::vector<std::string>& special_tokens) {
  for (const std::string& token : special_tokens) id_of(token);
  special_ = pieces_.size();
  std::array<u32, 256> byte_ids{};
  for (const char byte : bytes_by_character()) byte_ids[static_cast<u8>(byte)] = id_of(std::string(1, byte));
  for (const auto& [word, count] : words) {
    auto& ids = words_.emplace_back();
    for (const char byte : word) ids.push_back(byte_ids[static_cast<u8>(byte)]);
    counts_.push_back(count);
  }
  count_pairs();
}

u32 Trainer::id_of(const std::string& piece) {
  const auto [known, is_new] = ids_.emplace(piece, static_cast<u32>(pieces_.size()));
  if (is_new) pieces_.push_back(piece);
  return known->second;
}

void Trainer::count_pairs() {
  WordsOfPair found;
  for (u32 word = 0; word < words_.size(); ++word) {
    const auto& ids = words_[word];
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) change(pack_pair(ids[i], ids[i + 1]), 1, word, found);
  }
  push_found(found);
}

void Trainer::change(Pair pair, i64 by, u32 word, WordsOfPair& found) {
  pair_counts_[pair] += by * counts_[word];
  if (by < 0) return;
  auto& words = found[pair];
  if (words.empty() || words.back() != word) words.push_back(word);
}

void Trainer::push_found(WordsOfPair& found) {
  for (auto& [pair, words] : found) {
    const i64 count = pair_counts_[pair];
    if (count > 0) push({count, pair, std::move(words)});
  }
}

void Trainer::push(Candidate candidate) {
  queue_.push_back(std::move(candidate));
  std::ranges::push_heap(queue_, std::less<>());
}

Candidate Trainer::pop() {
  std::ranges::pop_heap(queue_, std::less<>());
  Candidate top = std::move(queue_.back());
  queue_.pop_back();
  return top;
}

void Trainer::merge_until(i64 vocab_size, i64 min_frequency) {
  while (static_cast<i64>(pieces_.size()) < vocab_size && !queue_.empty()) {
    Candidate top = pop();
    const i64 count = pair_counts_[top.pair];
    if (top.count != count) {
      top.count = count;
      push(std::move(top));
      continue;
    }
    if (count < std::max<i64>(1, min_frequency)) break;
    merge(top);
  }
}

void Trainer::merge(const Candidate& candidate) {
  const auto left = static_cast<u32>(candidate.pair >> 32), right = static_cast<u32>(candidate.pair);
  const u32 result = id_of(pieces_[left] + pieces_[right]);
  merges_.emplace_back(candidate.pair, result);
  WordsOfPair found;
  for (const u32 word : candidate.words) merge_in_word(word, candidate.pair, result, found);
  push_found(found);
}

/// Merges a pair within one word. The merged pair's count is not updated, since it is read again only if a different
/// word queues the pair again.
void Trainer::merge_in_word(u32 word, Pair pair, u32 result, WordsOfPair& found) {
  auto& ids = words_[word];
  std::size_t end = 0;  // end of the output
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + 1 == ids.size() || pack_pair(ids[i], ids[i + 1]) != pair) {
      ids[end++] = ids[i];
      continue;
    }
    const u32 left = ids[i], right = ids[i + 1];
    if (end > 0) {
      change(pack_pair(ids[end - 1], left), -1, word, found);
      change(pack_pair(ids[end - 1], result), 1, word, found);
    }
    if (i + 2 < ids.size()) {
      change(pack_pair(right, ids[i + 2]), -1, word, found);
      change(pack_pair(result, ids[i + 2]), 1, word, found);
    }
    ids[end++] = result;
    ++i;
  }
  ids.resize(end);
}

BpeDescription Trainer::description() const {
  BpeDescription description;
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    description.pieces.push_back(id < special_ ? pieces_[id] : byte_characters(pieces_[id]));
    if (id < special_)
      description.added.push_back({.id = static_cast<i32>(id), .content = pieces_[id], .is_in_vocabulary = true});
  }
  std::unordered_map<Pair, std::size_t> last;  // for pairs merged twice, the last index is used
  for (std::size_t i = 0; i < merges_.size(); ++i) last[merges_[i].first] = i;
  for (std::size_t i = 0; i < merges_.size(); ++i) {
    const auto& [pair, result] = merges_[i];
    if (last[pair] == i)
      description.merges.push_back(
          {static_cast<u32>(pair >> 32), static_cast<u32>(pair), static_cast<u32>(description.merges.size()), result});
  }
  return description;
}

}  // namespace

BpeDescription train_byte_bpe(const WordCounts& words, const std::vector<std::string>& special_tokens, i64 vocab_size,
                              i64 min_frequency) {
  Trainer trainer(words, special_tokens);
  trainer.merge_until(vocab_size, min_frequency);
  return trainer.description();
}

namespace {

// Limit above which sentencepiece silently drops sentences; ours are shorter.
constexpr const char* kMaxSentenceBytes = "1000000";
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // size of reads

std::unordered_map<std::string, std::string> trainer_arguments(const TokenizerOptions& options) {
  const bool is_bpe = options.model_type == TokenizerModel::Bpe;
  return {{"model_type", std::string(enum_name(options.model_type))},
          {"vocab_size", str(options.vocab_size)},
          {"character_coverage", str(options.character_coverage)},
          {"byte_fallback", options.byte_fallback ? "true" : "false"},
          // BPE trains on one thread. The model file records the number of threads, so a fixed value makes it
          // independent of it.
          {"num_threads", str(is_bpe ? 1 : options.num_threads)},
          {"max_sentence_length", kMaxSentenceBytes},
          {"input_format", is_bpe ? "tsv" : "text"},
          // Disable all normalization so that decode(encode(text)) is the text.
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"allow_whitespace_only_pieces", "true"},
          // <eod> is sentencepiece's end-of-sentence piece under a different name, so that other programs find it. It
          // is a control piece, so no text is ever encoded to it.
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"eos_piece", std::string(kEodPiece)},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"minloglevel", "2"}};
}

/// Returns the number after `mark` in sentencepiece's message.
std::string number_after(const std::string& message, std::string_view mark) {
  const std::size_t at = message.find(mark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + mark.size();
  return message.substr(begin, message.find_first_not_of("0123456789", begin) - begin);
}

[[noreturn]] void fail_training(const std::string& message, const TokenizerOptions& options) {
  const std::string max_size = number_after(message, "set it to a value <= ");
  check_input(max_size.empty(), "vocab_size ", options.vocab_size, " is too large for this text, which yields only ",
              max_size, " pieces; use a smaller vocab_size or more text");
  const std::string min_size = number_after(message, str("required_chars. ", options.vocab_size, " vs "));
  check_input(min_size.empty(), "vocab_size ", options.vocab_size, " is too small: the single characters of this text",
              options.byte_fallback ? " and the 256 bytes" : "", " alone need more than ", min_size,
              " pieces; use a larger vocab_size or a lower character_coverage");
  fail(ExitCode::BadInput, "sentencepiece cannot train on this text: ", message);
}

void check_has_text(bool has_text, const TokenizerOptions& options) {
  check_input(has_text, "tokenizer: no text in ", join(options.input, ", "));
}

void log_training_start(const TokenizerOptions& options, const Log& log) {
  log.info(str("training a ", enum_name(options.model_type), " tokenizer of ", options.vocab_size, " pieces"));
}

std::string sentencepiece_model(const TokenizerOptions& options, InputFiles& files, TokenizerTrainingProgress& progress,
                                const Log& log) {
  const auto text = options.model_type == TokenizerModel::Bpe ? make_word_iterator(files, options.num_threads, progress)
                                                              : make_block_iterator(files, progress);
  check_has_text(!text->done(), options);
  log_training_start(options, log);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(trainer_arguments(options), text.get(), &model);
  if (!status.ok()) fail_training(status.ToString(), options);
  round_scores(model, options.output);
  return model;
}

void check_special_tokens(const TokenizerOptions& options) {
  std::set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    check_input(token.size() > 1 && find_invalid_utf8(token) < 0, "special_tokens: \"", token,
                "\" is not a valid token: it needs at least two characters, in UTF-8");
    check_input(seen.insert(token).second, "special_tokens: ", token, " is listed twice");
  }
  const auto min_size = static_cast<i64>(256 + options.special_tokens.size());
  check_input(options.vocab_size >= min_size, "vocab_size ", options.vocab_size, " is too small: the 256 bytes and ",
              options.special_tokens.size(), " special tokens need ", min_size);
}

std::string byte_level_model(const TokenizerOptions& options, InputFiles& files, TokenizerTrainingProgress& progress,
                             const Log& log) {
  check_special_tokens(options);
  const WordCounts words = count_byte_words(files, options.pre_tokenizer, options.num_threads, progress);
  check_has_text(!words.empty(), options);
  log_training_start(options, log);
  BpeDescription description = train_byte_bpe(words, options.special_tokens, options.vocab_size, options.min_frequency);
  const auto max_size = static_cast<i64>(description.pieces.size());
  check_input(max_size >= options.vocab_size, "vocab_size ", options.vocab_size,
              " is too large for this text, which yields only ", max_size,
              " pieces; use a smaller vocab_size or more text");
  set_rules(description, options.pre_tokenizer);
  return to_tokenizer_json(description);
}

}  // namespace

void train_tokenizer(const TokenizerOptions& options, const Log& log) {
  check_input(!options.input.empty(), "tokenizer: input is empty; list text files");
  check_input(!options.output.empty(), "tokenizer: output is empty; set it to the model file to write");
  TokenizerTrainingProgress progress(log);
  InputFiles files(options.input, {.json_keys = options.json_keys, .input_format = options.input_format}, kPieceBytes);
  check_json_keys_are_used(options.json_keys, files.are_json_lines(), "--json_keys");
  const Path output = options.output;
  if (output.has_parent_path()) mcpp::create_directories(output.parent_path());
  AtomicFile file(output);  // created first so that an unwritable path fails before training
  file.write(options.model_type == TokenizerModel::BpeBytes ? byte_level_model(options, files, progress, log)
                                                            : sentencepiece_model(options, files, progress, log));
  file.commit();
}

}  // namespace mcpp

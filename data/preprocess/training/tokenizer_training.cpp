#include "data/preprocess/training/tokenizer_training.h"

#include <sentencepiece_trainer.h>

#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/preprocess/input_files.h"
#include "data/preprocess/training/byte_bpe_trainer.h"
#include "data/preprocess/training/training_progress.h"
#include "data/preprocess/training/training_text.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {
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

void check_has_text(bool has_text, const TokenizerOptions& options) {
  check_input(has_text, "tokenizer: there is no text in ", join(options.input, ", "));
}

void say_training(const TokenizerOptions& options, const Log& log) {
  log.info(str("training a ", enum_name(options.model_type), " tokenizer of ", options.vocab_size, " pieces"));
}

std::string sentencepiece_model(const TokenizerOptions& options, InputFiles& files, TokenizerTrainingProgress& progress,
                                const Log& log) {
  const auto text = options.model_type == TokenizerModel::Bpe ? make_word_iterator(files, options.num_threads, progress)
                                                              : make_block_iterator(files, progress);
  check_has_text(!text->done(), options);
  say_training(options, log);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(trainer_arguments(options), text.get(), &model);
  if (!status.ok()) explain(status.ToString(), options);
  round_scores(model, options.output);
  return model;
}

void check_special_tokens(const TokenizerOptions& options) {
  std::set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    check_input(token.size() > 1 && find_invalid_utf8(token) < 0, "special_tokens: \"", token,
                "\" is no token: two characters or more, in UTF-8");
    check_input(seen.insert(token).second, "special_tokens: ", token, " is there twice");
  }
  const auto least = static_cast<i64>(256 + options.special_tokens.size());
  check_input(options.vocab_size >= least, "vocab_size ", options.vocab_size, " is too small: the 256 bytes and ",
              options.special_tokens.size(), " special tokens are ", least);
}

std::string byte_level_model(const TokenizerOptions& options, InputFiles& files, TokenizerTrainingProgress& progress,
                             const Log& log) {
  check_special_tokens(options);
  const WordCounts words = count_byte_words(files, options.pre_tokenizer, options.num_threads, progress);
  check_has_text(!words.empty(), options);
  say_training(options, log);
  BpeDescription description = train_byte_bpe(words, options.special_tokens, options.vocab_size, options.min_frequency);
  const auto most = static_cast<i64>(description.pieces.size());
  check_input(most >= options.vocab_size, "vocab_size ", options.vocab_size,
              " is too large for this text, which gives only ", most, " pieces; use a smaller vocab_size or more text");
  set_rules(description, options.pre_tokenizer);
  return to_tokenizer_json(description);
}

}  // namespace

void train_tokenizer(const TokenizerOptions& options, const Log& log) {
  check_input(!options.input.empty(), "tokenizer: input is empty; give text files");
  check_input(!options.output.empty(), "tokenizer: output is empty; give the model file to write");
  TokenizerTrainingProgress progress(log);
  InputFiles files(options.input, {.json_keys = options.json_keys, .input_format = options.input_format}, kPieceBytes);
  check_json_keys_are_used(options.json_keys, files.are_json_lines(), "--json_keys");
  const Path output = options.output;
  if (output.has_parent_path()) mcpp::create_directories(output.parent_path());
  AtomicFile file(output);  // created first so that an unwritable path fails before training
  file.write(options.model_type == TokenizerModel::BpeBytes ? byte_level_model(options, files, progress, log)
                                                            : sentencepiece_model(options, files, progress, log));
  file.commit();
  log.info(str("wrote ", options.output));
}

}  // namespace mcpp

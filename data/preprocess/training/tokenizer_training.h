// Training of a tokenizer that satisfies decode(encode(text)) == text, byte for byte.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/log.h"
#include "data/preprocess/input_format.h"
#include "data/preprocess/training/training_text.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

// Byte-level BPE training that reproduces the BpeTrainer of `tokenizers`: identical words and counts yield identical
// pieces and merges, including ties.

/// Trains on the given words. The pieces are the special tokens, the 256 bytes, and merged pieces up to `vocab_size`,
/// or fewer if the words do not yield more. Pairs that occur fewer than `min_frequency` times are not merged. The
/// result does not depend on the order of `words`. Fills in pieces, merges and added tokens.
BpeDescription train_byte_bpe(const WordCounts& words, const std::vector<std::string>& special_tokens, i64 vocab_size,
                              i64 min_frequency);

enum class TokenizerModel { Unigram, Bpe, BpeBytes };
template <>
struct EnumNames<TokenizerModel> {
  static constexpr std::array<std::string_view, 3> value{"unigram", "bpe", "bpe-bytes"};
};

struct TokenizerOptions {
  std::vector<std::string> input;
  std::string output;
  i64 vocab_size = 32000;
  TokenizerModel model_type = TokenizerModel::Bpe;
  double character_coverage = 0.9995;
  bool byte_fallback = true;
  PreTokenization pre_tokenizer = PreTokenization::Llama3;
  i64 min_frequency = 2;
  std::vector<std::string> special_tokens{"<|endoftext|>"};
  std::vector<std::string> json_keys{"text"};
  i64 num_threads = 16;
  InputFormat input_format = InputFormat::Auto;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("input", self.input,
          "text or JSONL files, optionally compressed with gzip or zstd, or glob patterns such as data/*.txt; held in "
          "memory completely or, for bpe and bpe-bytes, as word counts");
    visit("input_format", self.input_format, kInputFormatHelp);
    visit("output", self.output, "file to write, usually tokenizer.model, for bpe-bytes tokenizer.json");
    visit("vocab_size", self.vocab_size, "number of pieces, including <unk>, <eod> and the 256 bytes", between(3, 1e7));
    visit("model_type", self.model_type,
          "unigram or bpe (sentencepiece model), or bpe-bytes, as for models on the Hugging Face Hub "
          "(tokenizer.json)");
    visit("character_coverage", self.character_coverage,
          "fraction of the characters of the text that become pieces; not for bpe-bytes", between(0.9, 1));
    visit("byte_fallback", self.byte_fallback,
          "encode characters that are not pieces as bytes instead of <unk>; always on for bpe-bytes");
    visit("pre_tokenizer", self.pre_tokenizer, "for bpe-bytes: pre-tokenization rules");
    visit("min_frequency", self.min_frequency, "for bpe-bytes: minimum count of a pair to be merged", at_least(1));
    visit("special_tokens", self.special_tokens,
          "for bpe-bytes: tokens that get the first ids; <|endoftext|> ends documents");
    visit("json_keys", self.json_keys, "keys of JSONL lines to train on");
    visit("num_threads", self.num_threads, "number of threads; affects the pieces of a unigram model", between(1, 128));
  }
};

/// Trains a tokenizer and writes the file atomically. Identical text and options yield identical bytes; for bpe and
/// bpe-bytes, on any number of threads. Throws BadInput if there is no text, if it is not UTF-8, or if vocab_size does
/// not suit it (the message states the limit).
void train_tokenizer(const TokenizerOptions& options, const Log& log);

}  // namespace mcpp

// Preprocessing of text to .bin/.idx: parallel, streaming, in bounded memory, and byte-identical for any number of
// workers.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/log.h"
#include "data/dataset/dataset_info.h"
#include "data/preprocess/conversation.h"
#include "data/preprocess/document_reader.h"
#include "data/preprocess/indexed_writer.h"

namespace mcpp {

struct PreprocessOptions {
  std::vector<std::string> input;
  std::string output_prefix;
  std::string tokenizer_model;
  std::vector<std::string> json_keys{"text"};
  TextDocument text_document = TextDocument::File;
  bool append_eod = true;
  bool keep_empty = false;
  bool skip_malformed = false;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::Error;
  i64 workers = 0;
  i64 log_interval = 1;
  bool parts = false;
  InputFormat input_format = InputFormat::Auto;
  JsonContent json_content = JsonContent::Text;
  std::string chat_template;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("input", self.input,
          "input files, in order, or glob patterns such as data/*.jsonl.gz: plain text or JSON lines, optionally "
          "compressed with gzip or zstd; a pipe is plain text unless input_format is set");
    visit("input_format", self.input_format, kInputFormatHelp);
    visit("output_prefix", self.output_prefix,
          "writes <output_prefix>_<key>_document.bin, .idx and .json, with the key "
          "text for plain text");
    visit(
        "tokenizer_model", self.tokenizer_model,
        "tokenizer file: sentencepiece model, tokenizer.json, vocab.json with merges.txt next to it, or tiktoken rank "
        "list");
    visit("json_keys", self.json_keys, "JSON lines: keys of each object to tokenize, one dataset per key");
    visit("json_content", self.json_content,
          "content of each JSON object: text, prompt_completion (strings or lists of messages in \"prompt\" and "
          "\"completion\"), or messages (a conversation in \"messages\"); all but text write a loss mask");
    visit("chat_template", self.chat_template,
          "file with a chat template in Jinja, for messages; empty = chat_template.jinja or tokenizer_config.json next "
          "to the tokenizer");
    visit("text_document", self.text_document,
          "unit of plain text that is one document: file, line, or paragraph (between "
          "blank lines)");
    visit("append_eod", self.append_eod, "end each document with <eod>");
    visit("keep_empty", self.keep_empty,
          "keep documents without text as documents without sequences, as Megatron-LM does");
    visit("skip_malformed", self.skip_malformed, "skip and count malformed JSON lines instead of failing");
    visit("invalid_utf8", self.invalid_utf8, "handling of invalid UTF-8: error, or replace with U+FFFD");
    visit("workers", self.workers, "number of tokenizing threads; 0 = all cores", between(0, 1024));
    visit("log_interval", self.log_interval, "seconds between progress lines", at_least(1));
    visit("parts", self.parts,
          "keep finished work in <output_prefix>.parts, so that a killed run resumes when it is restarted; "
          "always on for several ranks");
  }

  DocumentFormat format() const { return {json_keys, text_document, invalid_utf8, skip_malformed, input_format}; }
  ConversationFormat conversation() const { return {json_content, chat_template, append_eod}; }
  /// Returns true if the output consists of a dataset of tokens and a loss mask (kLossMaskKey).
  bool has_loss_mask() const { return json_content != JsonContent::Text; }
  /// Returns true if the dataset of a key is the loss mask.
  bool is_loss_mask(const std::string& key) const;
  /// Returns the dataset prefix of a key.
  std::string dataset_prefix(const std::string& key) const;
  /// Returns how documents of a key are written.
  DocumentOutputRules rules_of(const std::string& key) const;
};

/// Key of the loss mask of conversations.
inline constexpr std::string_view kLossMaskKey = "loss_mask";

/// Returns the output keys: the keys of the options for JSON lines, or "text" for plain text; for conversations, the
/// loss mask and "messages" or "completion". Throws BadInput if JSON lines and plain text are mixed, unless the key is
/// "text". `are_json_lines` has one element per input file.
std::vector<std::string> output_keys(const PreprocessOptions& options, const std::vector<bool>& are_json_lines);
/// Throws BadInput, naming the input files, if the output of a key has no tokens, or a loss mask without a single
/// target.
void check_has_content(const PreprocessOptions& options, const std::string& key, i64 tokens, const DatasetInfo& info);
/// Logs a warning if a chat template writes the token that ends documents inside of conversations.
void warn_of_early_ends(const ChunkTokenizer& tokenizer, const Log& log);
/// Throws BadInput if a required option is missing, or if an option has no effect.
void check_preprocess_options(const PreprocessOptions& options);

/// Dataset written for one key.
struct PreprocessOutput {
  std::string prefix;
  DatasetInfo info;
  bool is_loss_mask = false;
};

struct PreprocessResult {
  std::vector<PreprocessOutput> outputs;
  i64 empty_documents = 0;  ///< number of empty documents, which are skipped unless keep_empty is set
  i64 malformed_lines = 0;  ///< number of skipped JSON lines
  double seconds = 0;
};

/// Writes all outputs, or throws and leaves none. Throws BadInput for missing files, malformed JSON, invalid UTF-8
/// (with file:line), and if there is no text.
PreprocessResult run_preprocess(const PreprocessOptions& options, const Log& log);

}  // namespace mcpp

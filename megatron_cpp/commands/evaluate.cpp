// megatron_cpp evaluate: held-out perplexity of a checkpoint.
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "checkpoint/folder/exchange.h"
#include "data/prepare/input_files.h"
#include "data/read/dataset_info.h"
#include "data/read/indexed_dataset.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/inference/inference.h"
#include "megatron_cpp/inference/perplexity.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

struct EvaluateOptions {
  InferenceOptions inference;
  std::vector<std::string> text;
  std::string data;
  TextDocument text_document = TextDocument::File;
  std::string json_key = "text";
  i64 stride = 0;
  i64 micro_batch_size = 8;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    InferenceOptions::fields(self.inference, visit);
    visit(
        "text", self.text,
        "files to score, or patterns of their names: text or JSONL, gzip or not; what of it is a document, preprocess "
        "says");
    visit("data", self.data, "or a dataset prefix, without .bin/.idx");
    visit("text_document", self.text_document, "what is one document in plain text: file, line or paragraph");
    visit("json_key", self.json_key, "key of the JSON objects whose text is scored");
    visit("stride", self.stride,
          "tokens between two windows of seq_length: smaller gives each token more context and takes longer; 0 = "
          "seq_length",
          at_least(0));
    visit("micro_batch_size", self.micro_batch_size, "windows in one pass; does not change the result", at_least(1));
    visit("json", self.json, "print one JSON object instead of text");
  }
};

/// What is scored: tokens after one of context, and the size of the text they spell.
struct HeldOut {
  std::vector<i32> tokens;
  i64 words = 0, bytes = 0;
};

/// Each document after an <eod>, of which all but the first are scored too: they end the document before.
HeldOut read_texts(const EvaluateOptions& options, const Tokenizer& tokenizer) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  InputFiles files(options.text, {.json_keys = {options.json_key}, .text_document = options.text_document},
                   kPieceBytes);
  HeldOut held_out;
  std::string document;
  const auto end_document = [&] {
    if (document.empty()) return;
    held_out.tokens.push_back(tokenizer.eod());
    const std::vector<i32> ids = tokenizer.encode(document);
    held_out.tokens.insert(held_out.tokens.end(), ids.begin(), ids.end());
    held_out.words += count_words(document);
    held_out.bytes += static_cast<i64>(document.size());
    document.clear();
  };
  while (std::optional<InputFiles::Piece> read = files.next()) {
    const PieceDocuments parsed = parse_piece(read->path, std::move(read->piece), files.format());
    for (const Segment& segment : parsed.by_key[0]) {
      document += segment.text;
      if (segment.ends_document) end_document();
    }
  }
  check_input(!held_out.tokens.empty(), join(files.paths(), ", "), ": is empty, there is nothing to evaluate");
  return held_out;
}

/// Tokens of another tokenizer would be numbers without a meaning for the model.
void check_tokenizer(const DatasetInfo& info, const Path& prefix, const InferenceModel& inference) {
  const std::string known = inference.tokenizer_checksum();
  check_input(known.empty() || known == info.tokenizer_checksum, info_path(prefix).string(),
              ": the dataset was made with another tokenizer (checksum ", info.tokenizer_checksum,
              ") than the model was trained with (", known, "); preprocess the text again with that one");
}

HeldOut read_dataset(const Path& prefix, const InferenceModel& inference) {
  const i64 vocab_size = inference.config().model.vocab_size;
  const IndexedDataset dataset(prefix);
  const std::optional<DatasetInfo> info = read_dataset_info(prefix);
  HeldOut held_out;
  if (info) {
    check_tokenizer(*info, prefix, inference);
    held_out.tokens.push_back(static_cast<i32>(info->eod));
    held_out.words = info->source_words;
    held_out.bytes = info->source_bytes;
  }
  for (i64 sequence = 0; sequence < dataset.num_sequences(); ++sequence) {
    const std::size_t begin = held_out.tokens.size();
    held_out.tokens.resize(begin + static_cast<std::size_t>(dataset.length(sequence)));
    dataset.read(sequence, 0, std::span(held_out.tokens).subspan(begin));
  }
  for (i32 token : held_out.tokens) {
    check_input(token >= 0 && token < vocab_size, prefix.string(), ".bin: token ", token,
                " is outside the model's vocabulary of ", vocab_size);
  }
  check_input(held_out.tokens.size() > 1, prefix.string(), ": holds no tokens to evaluate");
  return held_out;
}

/// As bytes, for other ranks.
std::string pack(const HeldOut& held_out) {
  std::string bytes;
  const auto add = [&](const auto* data, std::size_t count) {
    bytes.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
  };
  add(&held_out.words, 1);
  add(&held_out.bytes, 1);
  add(held_out.tokens.data(), held_out.tokens.size());
  return bytes;
}

HeldOut unpack(std::string_view bytes) {
  HeldOut held_out;
  const auto take = [&](auto* data, std::size_t count) {
    std::memcpy(data, bytes.data(), count * sizeof(*data));
    bytes.remove_prefix(count * sizeof(*data));
  };
  take(&held_out.words, 1);
  take(&held_out.bytes, 1);
  held_out.tokens.resize(bytes.size() / sizeof(i32));
  take(held_out.tokens.data(), held_out.tokens.size());
  return held_out;
}

std::string as_text(const Perplexity& p) {
  std::string text = str("tokens               ", p.tokens, "\nloss per token       ", p.loss(),
                         "\ntoken perplexity     ", p.token_perplexity());
  if (p.words > 0) text += str("\nwords                ", p.words, "\nword perplexity      ", p.word_perplexity());
  if (p.bytes > 0) {
    text += str("\nbytes                ", p.bytes, "\nbyte perplexity      ", p.byte_perplexity(),
                "\nbits per byte        ", p.bits_per_byte());
  }
  return text;
}

std::string as_json(const Perplexity& p, const Path& checkpoint) {
  nlohmann::ordered_json json{{"checkpoint", checkpoint.string()},
                              {"tokens", p.tokens},
                              {"nll", p.nll},
                              {"loss", p.loss()},
                              {"token_perplexity", p.token_perplexity()}};
  if (p.words > 0) json.update({{"words", p.words}, {"word_perplexity", p.word_perplexity()}});
  if (p.bytes > 0) {
    json.update({{"bytes", p.bytes}, {"byte_perplexity", p.byte_perplexity()}, {"bits_per_byte", p.bits_per_byte()}});
  }
  return json.dump();
}

}  // namespace

ExitCode evaluate_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp evaluate",
                    .summary = "Measures held-out perplexity of a checkpoint on a text or a dataset.",
                    .positional = {},
                    .required = {"load"}};
  EvaluateOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_same_on_ranks("command line", join(args, "\n"), world.ranks, "give every rank the same arguments");
  check_input(options.text.empty() != options.data.empty(),
              "evaluate: give either --text, text files, or --data, a dataset prefix");
  InferenceModel inference(options.inference, world, log);
  const i64 seq_length = inference.config().model.seq_length;
  check_input(options.stride <= seq_length, "--stride: ", options.stride, " is above the model's seq_length ",
              seq_length);
  // Rank 0 alone needs to see the text.
  const HeldOut held_out = unpack(from_first(world.ranks, [&] {
    return pack(options.text.empty() ? read_dataset(options.data, inference)
                                     : read_texts(options, inference.tokenizer()));
  }));
  Perplexity result = evaluate_tokens(
      inference.model(), inference.parallel(), held_out.tokens,
      {.stride = options.stride > 0 ? options.stride : seq_length,
       .micro_batch_size = options.micro_batch_size,
       .progress = [&](i64 done, i64 all) { log.progress(str("evaluated ", done, " of ", all, " windows")); }});
  result.words = held_out.words;
  result.bytes = held_out.bytes;
  log.info(options.json ? as_json(result, inference.checkpoint())
                        : str("checkpoint           ", inference.checkpoint().string(), "\n", as_text(result)));
  return ExitCode::Done;
}

}  // namespace mcpp

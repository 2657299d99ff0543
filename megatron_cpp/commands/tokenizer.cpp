// Command megatron_cpp tokenizer train|encode|decode|info|convert.
#include "data/tokenizer/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include "checkpoint/directory/folder.h"
#include "data/preprocess/training/tokenizer_training.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {
namespace {

constexpr std::string_view kTokenizerFileHelp =
    "sentencepiece model, tokenizer.json, vocab.json with merges.txt next to it, or tiktoken rank list";

struct CodingOptions {
  std::string model;
  std::string text;
  std::string input;
  bool pieces = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("model", self.model, kTokenizerFileHelp);
    visit("text", self.text, "text to encode, or ids to decode");
    visit("input", self.input, "file with the text or ids; without --text and --input, standard input is read");
    visit("pieces", self.pieces, "with encode: print pieces instead of ids");
  }
};

struct InfoOptions {
  std::string model;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("model", self.model, kTokenizerFileHelp);
  }
};

struct ConvertOptions {
  std::string model;
  std::string output;
  std::string pre_tokenizer;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("model", self.model, "tiktoken rank list, or vocab.json with merges.txt next to it");
    visit("output", self.output, "tokenizer.json to write");
    visit("pre_tokenizer", self.pre_tokenizer,
          "rules that split text into words: gpt2, llama3, qwen2, cl100k or o200k; empty = the rules of the known "
          "vocabulary");
  }
};

std::string source_text(const CodingOptions& options) {
  if (!options.text.empty()) return options.text;
  if (!options.input.empty()) return read_text_file(options.input);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

ExitCode train(Arguments args, Log& log) {
  const Usage usage{
      .command = "megatron_cpp tokenizer train",
      .summary = "Trains a sentencepiece model or a byte-level tokenizer.json; decoding reproduces every text exactly.",
      .positional = {"input"},
      .required = {"input", "output"}};
  TokenizerOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_file_outside_checkpoints(options.output);
  train_tokenizer(options, log);
  log.info(str("wrote ", options.output, ": ", Tokenizer(options.output).vocab_size(), " pieces"));
  return ExitCode::Done;
}

ExitCode encode(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp tokenizer encode",
                    .summary = "Prints the token ids of a text, separated by spaces.",
                    .positional = {},
                    .required = {"model"}};
  CodingOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const Tokenizer tokenizer(options.model);
  std::vector<std::string> words;
  for (i32 id : tokenizer.encode(source_text(options))) words.push_back(options.pieces ? tokenizer.piece(id) : str(id));
  log.info(join(words, " "));
  return ExitCode::Done;
}

ExitCode decode(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp tokenizer decode",
                    .summary = "Prints the text of token ids separated by white space.",
                    .positional = {},
                    .required = {"model"}};
  CodingOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const Tokenizer tokenizer(options.model);
  std::istringstream words(source_text(options));
  std::vector<i32> ids;
  for (std::string word; words >> word;) {
    const auto id = parse_number<i32>(word);
    check_input(id.has_value(), "decode: \"", word, "\" is not a token id");
    ids.push_back(*id);
  }
  std::string text = tokenizer.decode(ids);
  if (::isatty(STDOUT_FILENO) != 0) text += "\n";  // files and pipes receive exactly the text
  std::fwrite(text.data(), 1, text.size(), stdout);
  return ExitCode::Done;
}

ExitCode info(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp tokenizer info",
                    .summary = "Describes a tokenizer file and its treatment of text.",
                    .positional = {"model"},
                    .required = {"model"}};
  InfoOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  for (const auto& [name, value] : Tokenizer(options.model).describe())
    log.info(str(name, std::string(std::max<std::size_t>(21 - std::min<std::size_t>(name.size(), 20), 1), ' '), value));
  return ExitCode::Done;
}

/// Returns the pre-tokenization rules of that name; std::nullopt for "".
std::optional<PreTokenization> rules_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto& names = EnumNames<PreTokenization>::value;
  const auto it = std::ranges::find(names, name);
  check_input(it != names.end(), "--pre_tokenizer=", name, ": must be one of ",
              join(std::vector<std::string>(names.begin(), names.end()), ", "));
  return static_cast<PreTokenization>(it - names.begin());
}

ExitCode convert(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp tokenizer convert",
                    .summary = "Creates a tokenizer.json from files without pre-tokenization rules.",
                    .positional = {"model", "output"},
                    .required = {"model", "output"}};
  ConvertOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_file_outside_checkpoints(options.output);
  write_file_atomic(options.output, convert_to_tokenizer_json(options.model, rules_of(options.pre_tokenizer)));
  log.info(str("wrote ", options.output, ": ", Tokenizer(options.output).vocab_size(), " pieces"));
  return ExitCode::Done;
}

}  // namespace

ExitCode tokenizer_command(Arguments args, Log& log) {
  static constexpr std::array kSubcommands{
      Command{"train", "train a model from text", train}, Command{"encode", "convert text to token ids", encode},
      Command{"decode", "convert token ids to text", decode}, Command{"info", "describe a tokenizer file", info},
      Command{"convert", "convert to a tokenizer.json", convert}};
  return run_subcommand("tokenizer", kSubcommands, args, log);
}

}  // namespace mcpp

// megatron_cpp tokenizer train|encode|decode.
#include "data/tokenizer/tokenizer.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include "data/prepare/tokenizer_training.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/options.h"

namespace mcpp {
namespace {

struct CodingOptions {
  std::string model;
  std::string text;
  std::string input;
  bool pieces = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("model", self.model, "sentencepiece model");
    visit("text", self.text, "what to encode, or the ids to decode");
    visit("input", self.input, "or a file with it; without either, standard input");
    visit("pieces", self.pieces, "encode: print pieces instead of ids");
  }
};

std::string source_text(const CodingOptions& options) {
  if (!options.text.empty()) return options.text;
  if (!options.input.empty()) return read_text_file(options.input);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

ExitCode train(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp tokenizer train",
                    .summary = "Trains a sentencepiece model that gives every text back byte for byte.",
                    .positional = {"input"},
                    .required = {"input", "output"}};
  TokenizerOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  train_tokenizer(options, log);
  log.info(str(options.output, ": ", Tokenizer(options.output).vocab_size(), " pieces"));
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
    i32 id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    check_input(error == std::errc() && end == word.data() + word.size(), "decode: \"", word, "\" is not a token id");
    ids.push_back(id);
  }
  const std::string text = tokenizer.decode(ids);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return ExitCode::Done;
}

}  // namespace

ExitCode tokenizer_command(Arguments args, Log& log) {
  static constexpr std::array kSubcommands{Command{"train", "learn a model from text", train},
                                           Command{"encode", "text to token ids", encode},
                                           Command{"decode", "token ids to text", decode}};
  return run_subcommand("tokenizer", kSubcommands, args, log);
}

}  // namespace mcpp

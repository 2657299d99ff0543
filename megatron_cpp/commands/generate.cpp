// megatron_cpp generate: text from a checkpoint, printed as it is made.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/strings.h"
#include "checkpoint/folder/exchange.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/inference/generation.h"
#include "megatron_cpp/inference/inference.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

struct GenerateOptions {
  InferenceOptions inference;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  bool prepend_eod = false;
  i64 max_new_tokens = 256;
  i64 num_samples = 1;
  bool ignore_eod = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    InferenceOptions::fields(self.inference, visit);
    visit("prompt", self.prompt, "text to continue; empty = the beginning of a document");
    visit("prompt_file", self.prompt_file, "or a file with it; - = standard input");
    visit(
        "prepend_eod", self.prepend_eod,
        "begin with the end of the document before, as evaluate does: for a prompt that begins a document. Without it "
        "the prompt stands for itself, as in transformers");
    visit("max_new_tokens", self.max_new_tokens, "tokens at most", at_least(1));
    visit("num_samples", self.num_samples, "texts, with seeds seed, seed + 1, ...", at_least(1));
    visit("ignore_eod", self.ignore_eod, "go on after the end of a document");
    SamplingOptions::fields(self.sampling, visit);
  }
};

/// Prints at once, on rank 0.
class Printer {
 public:
  explicit Printer(int rank) : prints_(rank == 0) {}
  void operator()(std::string_view text) const {
    if (!prints_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

 private:
  bool prints_;
};

std::string prompt_text(const GenerateOptions& options) {
  check_input(options.prompt.empty() || options.prompt_file.empty(), "generate: give either --prompt or --prompt_file");
  if (options.prompt_file.empty()) return options.prompt;
  if (options.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  return read_text_file(options.prompt_file);
}

/// The tokens to continue. What does not fit the context is left out, which is said.
std::vector<i32> prompt_tokens(const std::string& text, const Tokenizer& tokenizer, const GenerateOptions& options,
                               i64 longest, const Log& log) {
  std::vector<i32> tokens = tokenizer.encode(text);
  if (options.prepend_eod || tokens.empty()) tokens.insert(tokens.begin(), tokenizer.eod());
  const i64 left_out = static_cast<i64>(tokens.size()) - longest;
  if (left_out > 0) {
    log.warn(str("the prompt has ", tokens.size(), " tokens, the model's context ", longest, ": the first ", left_out,
                 " are left out"));
  }
  return tokens;
}

void generate_one(InferenceModel& inference, const Tokenizer& tokenizer, const std::string& text,
                  const std::vector<i32>& prompt, const GenerateOptions& options, const SamplingOptions& sampling,
                  const Printer& print_now) {
  print_now(text);
  StreamDecoder decoder(tokenizer);
  for (i32 token : prompt) decoder.add(token);  // so that what follows joins on
  generate(inference.model(), inference.parallel(), prompt, sampling,
           {.max_new_tokens = options.max_new_tokens, .stop_token = options.ignore_eod ? -1 : tokenizer.eod()},
           [&](i32 token) {
             print_now(decoder.add(token));
             return true;
           });
  print_now(decoder.finish() + "\n");
}

}  // namespace

ExitCode generate_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp generate",
                    .summary = "Samples text from a checkpoint.",
                    .positional = {},
                    .required = {"load"}};
  GenerateOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_same_on_ranks("command line", join(args, "\n"), world.ranks, "give every rank the same arguments");
  // Rank 0 alone sees standard input.
  const std::string text = from_first(world.ranks, [&] { return prompt_text(options); });
  check_input(options.inference.parallel.context_parallel_size == 1,
              "generate: one token at a time cannot be shared: --parallel.context_parallel_size must be 1; use "
              "--parallel.tensor_model_parallel_size or --parallel.pipeline_model_parallel_size");
  InferenceModel inference(options.inference, world, log);
  const int copies = inference.parallel().topology.dp();
  check_input(copies == 1, "generate: ", world.ranks.size(), " ranks hold the model ", copies,
              " times, and one text needs it once; start as many ranks as --parallel.tensor_model_parallel_size x "
              "--parallel.pipeline_model_parallel_size");
  const Printer print_now(world.ranks.rank());
  const Tokenizer tokenizer = inference.tokenizer();
  const std::vector<i32> prompt =
      prompt_tokens(text, tokenizer, options, inference.config().model.max_positions(), log);
  for (i64 i = 0; i < options.num_samples; ++i) {
    SamplingOptions sampling = options.sampling;
    sampling.seed += i;
    if (i > 0) print_now("----\n");
    generate_one(inference, tokenizer, text, prompt, options, sampling, print_now);
  }
  return ExitCode::Done;
}

}  // namespace mcpp

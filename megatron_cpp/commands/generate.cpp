// megatron_cpp generate: text from a checkpoint, printed as it is made.
#include <cstdio>

#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/inference/generation.h"
#include "megatron_cpp/inference/inference.h"

namespace mcpp {
namespace {

struct GenerateOptions {
  InferenceOptions inference;
  SamplingOptions sampling;
  std::string prompt;
  i64 max_new_tokens = 256;
  i64 num_samples = 1;
  bool ignore_eod = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    InferenceOptions::fields(self.inference, visit);
    visit("prompt", self.prompt, "text to continue; empty = the beginning of a document");
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

void generate_one(InferenceModel& inference, const Tokenizer& tokenizer, const GenerateOptions& options,
                  const SamplingOptions& sampling, const Printer& print_now) {
  std::vector<i32> prompt = tokenizer.encode(options.prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.eod());
  print_now(options.prompt);
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
  InferenceModel inference(options.inference, world, log);
  const int copies = inference.parallel().topology.dp();
  check_input(copies == 1, "generate: ", world.ranks.size(), " ranks hold the model ", copies,
              " times, and one text needs it once; start as many ranks as --parallel.tensor_model_parallel_size x "
              "--parallel.pipeline_model_parallel_size");
  const Printer print_now(world.ranks.rank());
  const Tokenizer tokenizer = inference.tokenizer();
  for (i64 i = 0; i < options.num_samples; ++i) {
    SamplingOptions sampling = options.sampling;
    sampling.seed += i;
    if (i > 0) print_now("----\n");
    generate_one(inference, tokenizer, options, sampling, print_now);
  }
  return ExitCode::Done;
}

}  // namespace mcpp

// Command megatron_cpp generate: text from a checkpoint, printed as it is generated.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include "base/strings.h"
#include "comm/object_collectives.h"
#include "data/preprocess/text_source.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/inference/generation.h"
#include "megatron_cpp/inference/inference.h"
#include "megatron_cpp/inference/window_scorer.h"
#include "megatron_cpp/setup/initialize.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

struct GenerateOptions {
  InferenceOptions inference;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  std::string prompts_file;
  bool prepend_eod = false;
  i64 max_new_tokens = 256;
  i64 num_samples = 1;
  i64 batch_size = 8;
  bool ignore_eod = false;
  DraftOptions drafts;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    InferenceOptions::fields(self.inference, visit);
    visit("prompt", self.prompt, "text to continue; empty = the beginning of a document");
    visit("prompt_file", self.prompt_file, "file with the prompt; - = standard input");
    visit("prompts_file", self.prompts_file,
          "JSONL file with lines {\"prompt\": ..}; the output has the same lines with the generated \"text\"");
    visit("prepend_eod", self.prepend_eod,
          "begin with the token that begins texts, as evaluate does: the model's bos, or the end of the previous "
          "document. Otherwise the prompt is unchanged, after a bos if the model's tokenizer adds one, as in "
          "transformers");
    visit("max_new_tokens", self.max_new_tokens, "maximum number of generated tokens", at_least(1));
    visit("num_samples", self.num_samples, "number of texts, with seeds seed, seed + 1, ...", at_least(1));
    visit("batch_size", self.batch_size, "number of texts generated in one batch", between(1, 1e5));
    visit("ignore_eod", self.ignore_eod, "continue after the end of a document or any other token that ends texts");
    SamplingOptions::fields(self.sampling, visit);
    DraftOptions::fields(self.drafts, visit);
  }
};

std::string prompt_text(const GenerateOptions& options) {
  const int prompt_options = !options.prompt.empty() + !options.prompt_file.empty() + !options.prompts_file.empty();
  check_input(prompt_options <= 1, "generate: pass only one of --prompt, --prompt_file and --prompts_file");
  if (!options.prompts_file.empty()) return read_text_file(options.prompts_file);
  if (options.prompt_file.empty()) return options.prompt;
  if (options.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  return read_text_file(options.prompt_file);
}

/// Returns the tokens to continue. Drops tokens that do not fit the context, with a warning.
std::vector<i32> prompt_tokens(const std::string& text, const Tokenizer& tokenizer, const SpecialTokens& special,
                               const GenerateOptions& options, i64 longest, const Log& log) {
  std::vector<i32> tokens = tokenizer.encode(text);
  special.add_bos(tokens);
  const i32 begin = special.text_begin(tokenizer);
  const bool has_bos = special.bos && !tokens.empty() && tokens.front() == begin;
  if ((options.prepend_eod && !has_bos) || tokens.empty()) tokens.insert(tokens.begin(), begin);
  const i64 dropped = static_cast<i64>(tokens.size()) - longest;
  if (dropped > 0) {
    log.warn(str("the prompt has ", tokens.size(), " tokens, but the model's context has only ", longest,
                 "; the first ", dropped, " are dropped"));
  }
  return tokens;
}

/// Parses `text`, the content of `file`: JSON objects with "prompt", one per line.
std::vector<std::string> parse_prompts(const std::string& text, const std::string& file) {
  std::vector<std::string> prompts;
  std::istringstream lines(text);
  std::string line;
  for (i64 number = 1; std::getline(lines, line); ++number) {
    if (is_blank(line)) continue;
    try {
      prompts.push_back(text_member(parse_json_line(line), "prompt"));
    } catch (const Error& error) {
      fail(error.code(), file, ":", number, ": ", error.what());
    }
  }
  check_input(!prompts.empty(), file, ": contains no prompt");
  return prompts;
}

/// Prints on rank 0 without buffering.
void print_now(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// Rejects drafts for models with recurrent layers.
void check_drafts(const DraftOptions& drafts, const ModelConfig& model) {
  if (drafts.num_speculative_tokens == 0) return;
  for (const BlockSpec& block : BlockKinds(model).kinds)
    check_input(!block.recurrent(),
                "generate: --num_speculative_tokens must be 0 for a model with recurrent layers, because their states "
                "cannot return to the position before a discarded token");
}

/// Prints the number of accepted draft tokens on standard error, because standard output contains the texts.
void print_drafts(const GenerationCounts& counts) {
  if (counts.drafted == 0) return;
  std::cerr << str("speculative decoding: ", counts.passes, " passes; ", counts.accepted, " of ", counts.drafted,
                   " drafted tokens accepted (", 100 * counts.accepted / counts.drafted, " %)\n");
}

/// texts[i] begins with prompts[i].
GenerationCounts generate_batch(InferenceModel& inference, std::vector<TextStart> texts, const GenerationLimits& limits,
                                const std::vector<std::string_view>& prompts, const Tokenizer& tokenizer,
                                TextPrinter& printer) {
  std::vector<TextPrinter::Prompt> prompts_to_print;
  for (std::size_t i = 0; i < texts.size(); ++i)
    prompts_to_print.push_back({.text = prompts[i], .tokens = texts[i].prompt});
  printer.begin(prompts_to_print, tokenizer);
  return generate(inference.model(), inference.parallel(), std::move(texts), limits,
                  [&](std::size_t text, i32 token) { printer.add(text, token); });
}

/// Rejects data-parallel ranks that only replicate the model. Replicas of the dense layers are fine if each rank holds
/// different experts: the time per token is dominated by reading weights, so that the redundant GEMMs cost little.
void reject_replicas(InferenceModel& inference) {
  const ParallelState& parallel = inference.parallel();
  const int ranks = parallel.world.size(), copies = parallel.topology.dp();
  const bool has_experts = parallel.expert_dp != nullptr;
  if (copies == 1 || (has_experts && parallel.expert_dp->size() == 1)) return;
  fail(ExitCode::BadInput, "generate: ", ranks, " ranks hold the model ", copies,
       " times, but generation needs only one copy; start as many ranks as --parallel.tensor_model_parallel_size x "
       "--parallel.pipeline_model_parallel_size",
       has_experts ? str(", or distribute the experts over all ", ranks,
                         ": --parallel.expert_model_parallel_size x --parallel.expert_tensor_parallel_size x "
                         "--parallel.pipeline_model_parallel_size = ",
                         ranks)
                   : std::string());
}

}  // namespace

ExitCode generate_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp generate",
                    .summary = "Samples text from a checkpoint.",
                    .positional = {},
                    .required = {"load"}};
  GenerateOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_identical_on_ranks("command line", join(args, "\n"), world.ranks, "pass every rank the same arguments");
  const bool has_file = !options.prompts_file.empty();
  // Only rank 0 can read standard input.
  const std::string text = broadcast_from_rank0(world.ranks, [&] { return prompt_text(options); });
  const std::vector<std::string> prompts = has_file ? parse_prompts(text, options.prompts_file) : std::vector{text};
  check_input(
      options.inference.parallel.cp == 1,
      "generate: a single token cannot be sharded over its sequence: --parallel.context_parallel_size must be 1; use "
      "--parallel.tensor_model_parallel_size or --parallel.pipeline_model_parallel_size");
  InferenceModel inference(options.inference, world, log);
  reject_replicas(inference);
  check_drafts(options.drafts, inference.config().model);
  const Tokenizer tokenizer = inference.tokenizer();
  const SpecialTokens& special = inference.special_tokens();
  const bool prints = world.ranks.rank() == 0;
  TextPrinter printer(has_file ? TextPrinter::Form::JsonLines : TextPrinter::Form::Stream,
                      [&](std::string_view chunk) { prints ? print_now(chunk) : void(); });
  std::vector<TextStart> starts;
  std::vector<std::string_view> batch_prompts;
  const GenerationLimits limits{.max_new_tokens = options.max_new_tokens,
                                .stop_tokens = options.ignore_eod ? std::vector<i32>() : special.stop_tokens(tokenizer),
                                .documents = inference.document_rules(),
                                .drafts = options.drafts};
  GenerationCounts counts;
  const auto flush = [&] {
    const GenerationCounts batch = generate_batch(inference, std::exchange(starts, {}), limits,
                                                  std::exchange(batch_prompts, {}), tokenizer, printer);
    counts.passes += batch.passes, counts.drafted += batch.drafted, counts.accepted += batch.accepted;
  };
  const i64 texts = static_cast<i64>(prompts.size()) * options.num_samples;
  check_generation_memory(inference.model(), inference.parallel(), std::min(options.batch_size, texts));
  for (const std::string& prompt : prompts) {
    const std::vector<i32> tokens =
        prompt_tokens(prompt, tokenizer, special, options, inference.config().model.max_positions(), log);
    for (i64 sample = 0; sample < options.num_samples; ++sample) {
      starts.push_back({.prompt = tokens, .sampling = options.sampling});
      starts.back().sampling.seed += sample;
      batch_prompts.emplace_back(prompt);
      if (static_cast<i64>(starts.size()) == options.batch_size) flush();
    }
  }
  flush();
  if (prints) print_drafts(counts);
  log_device_warnings(inference.model().context().device, log);
  return ExitCode::Done;
}

}  // namespace mcpp

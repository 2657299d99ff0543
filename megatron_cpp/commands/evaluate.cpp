// Command megatron_cpp evaluate: held-out perplexity of a checkpoint, and its accuracy on likelihood tasks.
#include <algorithm>

#include "base/json.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "data/preprocess/input_files.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/inference/evaluation/perplexity.h"
#include "megatron_cpp/inference/evaluation/tasks.h"
#include "megatron_cpp/inference/inference.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

struct TextResult {
  std::string name;
  Perplexity perplexity;
};

/// Results of an evaluation.
struct EvaluationReport {
  Path checkpoint;
  DType dtype = DType::F32;  ///< type of the model's computations
  std::vector<TextResult> texts;
  std::vector<TaskResult> tasks;

  /// Returns one line per value for a single text, otherwise a table of the texts and a table of the tasks. Prints only
  /// digits that do not depend on the layout: 6 for fp32 and fp64, 4 for lower precision.
  std::string as_text() const;
  /// Returns all digits: one object for a single text, otherwise an object with the lists "texts" and "tasks".
  std::string as_json() const;

 private:
  bool is_one_text() const { return texts.size() == 1 && tasks.empty(); }
};

struct EvaluateOptions {
  InferenceOptions inference;
  std::vector<std::string> text, data, tasks;
  std::string log_samples;
  InputFormat input_format = InputFormat::Auto;
  TextDocument text_document = TextDocument::File;
  std::string json_key = "text";
  bool by_file = false;
  i64 window = 0;
  i64 stride = 0;
  i64 micro_batch_size = 8;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    InferenceOptions::fields(self.inference, visit);
    visit("text", self.text,
          "files to score, or glob patterns: text or JSONL, optionally compressed, as in preprocess");
    visit("input_format", self.input_format, kInputFormatHelp);
    visit("by_file", self.by_file, "score each file of --text separately instead of all as one text");
    visit("data", self.data, "dataset prefixes, without .bin/.idx, each scored separately");
    visit("text_document", self.text_document, "unit of plain text that is one document: file, line or paragraph");
    visit("json_key", self.json_key, "key of the text in JSON objects");
    visit("window", self.window,
          "maximum number of tokens predicted in one pass: published perplexities use 2048 or 4096, and a long context "
          "may not fit in memory; 0 = the model's seq_length",
          at_least(0));
    visit("stride", self.stride,
          "tokens between the starts of two windows: smaller values give each token more context, but scoring takes "
          "longer; 0 = the window",
          at_least(0));
    visit("tasks", self.tasks,
          "likelihood tasks, JSONL files or glob patterns: {\"context\": ..., \"continuations\": [...], \"answer\": N} "
          "in each line");
    visit("log_samples", self.log_samples, "file for one JSON object per item of the tasks");
    visit("micro_batch_size", self.micro_batch_size,
          "number of windows or continuations per pass: larger values are faster and need more memory; does not change "
          "the result",
          at_least(1));
    visit("json", self.json, "print one JSON object instead of text");
  }
};

void check_options(const EvaluateOptions& options) {
  check_input(!options.text.empty() || !options.data.empty() || !options.tasks.empty(),
              "evaluate: pass --text (text files), --data (dataset prefixes) or --tasks (task files)");
  check_input(options.log_samples.empty() || !options.tasks.empty(),
              "--log_samples: applies only to --tasks, which is not set");
}

std::vector<HeldOut> read_held_out(const EvaluateOptions& options, const InferenceModel& inference) {
  std::vector<HeldOut> texts;
  if (!options.text.empty()) {
    const Tokenizer tokenizer = inference.tokenizer();
    const DocumentFormat format{
        .json_keys = {options.json_key}, .text_document = options.text_document, .input_format = options.input_format};
    const std::vector<std::string> files = expand_patterns(options.text);
    std::vector<bool> are_json_lines;
    for (const std::string& file : files) are_json_lines.push_back(is_json_lines(file, options.input_format));
    check_json_keys_are_used(format.json_keys, are_json_lines, "--json_key");
    if (!options.by_file) {
      texts.push_back(read_texts(files, format, tokenizer, inference.special_tokens()));
    } else {
      for (const std::string& file : files)
        texts.push_back(read_texts({file}, format, tokenizer, inference.special_tokens()));
    }
  }
  for (const std::string& prefix : options.data) texts.push_back(read_dataset(prefix, inference));
  return texts;
}

/// Scores texts and tasks, read on one rank, on all ranks.
class Evaluation {
 public:
  Evaluation(const EvaluateOptions& options, InferenceModel& inference, Communicator& ranks, const Log& log)
      : options_(options), inference_(inference), ranks_(ranks), log_(log) {}

  std::vector<TextResult> score(const std::vector<HeldOut>& texts) {
    const SpecialTokens& special = inference_.special_tokens();
    const bool has_own_begin = special.bos && special.bos != special.eos;
    const std::vector<Perplexity> scored =
        evaluate_texts(inference_.model(), inference_.parallel(), texts,
                       {.window = window(),
                        .stride = options_.stride > 0 ? options_.stride : window(),
                        .micro_batch_size = options_.micro_batch_size,
                        .documents = inference_.document_rules(),
                        .begin_token = has_own_begin ? static_cast<i32>(*special.bos) : -1,
                        .progress = progress("windows")});
    std::vector<TextResult> results;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      TextResult& result = results.emplace_back(TextResult{.name = texts[i].name, .perplexity = scored[i]});
      check_input(result.perplexity.tokens > 0, result.name,
                  ": has no token to score; data.eod_mask_loss excludes those that begin a document, and a loss mask "
                  "those of prompts");
      result.perplexity.words = texts[i].words;
      result.perplexity.bytes = texts[i].bytes;
    }
    return results;
  }

  /// Returns the results on rank 0, the only rank that reads the files; other ranks return an empty list.
  std::vector<TaskResult> score_tasks(const std::vector<std::string>& files) {
    const TaskSuite suite(
        files, [&] { return task_encoder(inference_.tokenizer(), inference_.special_tokens()); }, window(), ranks_);
    return *suite.score(inference_.model(), inference_.parallel(),
                        {.micro_batch_size = options_.micro_batch_size,
                         .documents = inference_.document_rules(),
                         .progress = progress("continuations")});
  }

 private:
  i64 window() const { return options_.window > 0 ? options_.window : inference_.config().model.seq_length; }
  std::function<void(i64, i64)> progress(const char* what) const {
    return [this, what](i64 done, i64 all) { log_.progress(str("evaluated ", done, " of ", all, " ", what)); };
  }

  const EvaluateOptions& options_;
  InferenceModel& inference_;
  Communicator& ranks_;
  const Log& log_;
};

using Row = std::vector<std::string>;

/// Formats columns two spaces apart, the first left-aligned, the others right-aligned.
std::string table(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const Row& other : rows) width = std::max(width, other[column].size());
      if (column > 0) line += "  ";
      line += column == 0 ? pad_right(row[column], width) : pad_left(row[column], width);
    }
    text.append("\n").append(line, 0, line.find_last_not_of(' ') + 1);
  }
  return text;
}

/// Returns the number of digits that agree on every layout: ranks that share a layer round sums in a different order.
int digits_of(DType type) {
  return type == DType::F32 || type == DType::F64 ? 6 : 4;
}

std::string perplexity_text(const Perplexity& p, int digits) {
  const auto format = [&](double value) { return significant(value, digits); };
  std::string text = str("\ntokens               ", p.tokens, "\nloss per token       ", format(p.loss()),
                         "\ntoken perplexity     ", format(p.token_perplexity()));
  if (p.words > 0)
    text += str("\nwords                ", p.words, "\nword perplexity      ", format(p.word_perplexity()));
  if (p.bytes > 0) {
    text += str("\nbytes                ", p.bytes, "\nbyte perplexity      ", format(p.byte_perplexity()),
                "\nbits per byte        ", format(p.bits_per_byte()));
  }
  return text;
}

Row row_of(const TextResult& text, int digits) {
  const Perplexity& p = text.perplexity;
  const auto format = [&](double value) { return significant(value, digits); };
  return {text.name,
          str(p.tokens),
          format(p.loss()),
          format(p.token_perplexity()),
          p.words > 0 ? format(p.word_perplexity()) : "",
          p.bytes > 0 ? format(p.byte_perplexity()) : "",
          p.bytes > 0 ? format(p.bits_per_byte()) : ""};
}

void add_numbers(const Perplexity& p, OrderedJson& json) {
  json.update({{"tokens", p.tokens}, {"nll", p.nll}, {"loss", p.loss()}, {"token_perplexity", p.token_perplexity()}});
  if (p.words > 0) json.update({{"words", p.words}, {"word_perplexity", p.word_perplexity()}});
  if (p.bytes > 0) {
    json.update({{"bytes", p.bytes}, {"byte_perplexity", p.byte_perplexity()}, {"bits_per_byte", p.bits_per_byte()}});
  }
}

OrderedJson json_of(const TaskResult& result) {
  OrderedJson json{
      {"task", result.task.name}, {"file", result.task.file.string()}, {"items", result.task.items.size()}};
  for (const TaskMetric& metric : result.scores.metrics) {
    json[metric.name] = metric.value;
    json[metric.name + "_stderr"] = metric.standard_error ? OrderedJson(*metric.standard_error) : OrderedJson();
  }
  return json;
}

std::string EvaluationReport::as_text() const {
  std::string text = str("checkpoint           ", checkpoint.string());
  if (is_one_text()) return text + perplexity_text(texts[0].perplexity, digits_of(dtype));
  if (!texts.empty()) {
    std::vector<Row> rows{{"text", "tokens", "loss per token", "token perplexity", "word perplexity", "byte perplexity",
                           "bits per byte"}};
    for (const TextResult& result : texts) rows.push_back(row_of(result, digits_of(dtype)));
    text.append("\n").append(table(rows));
  }
  if (!tasks.empty()) {
    std::vector<Row> rows{{"task", "items", "metric", "value", "stderr"}};
    for (const TaskResult& result : tasks) {
      for (const TaskMetric& metric : result.scores.metrics) {
        rows.push_back({result.task.name, str(result.task.items.size()), metric.name, fixed(metric.value, 4),
                        metric.standard_error ? fixed(*metric.standard_error, 4) : ""});
      }
    }
    text.append("\n").append(table(rows));
  }
  return text;
}

std::string EvaluationReport::as_json() const {
  OrderedJson json{{"checkpoint", checkpoint.string()}};
  if (is_one_text()) {
    add_numbers(texts[0].perplexity, json);
    return json.dump();
  }
  for (const TextResult& result : texts) {
    OrderedJson text{{"text", result.name}};
    add_numbers(result.perplexity, text);
    json["texts"].push_back(std::move(text));
  }
  for (const TaskResult& result : tasks) json["tasks"].push_back(json_of(result));
  return json.dump();
}

void write_samples(const Path& file, const std::vector<TaskResult>& results) {
  std::string lines;
  for (const TaskResult& result : results) lines += samples_as_jsonl(result.task, result.scores);
  if (file.has_parent_path()) mcpp::create_directories(file.parent_path());
  write_file_atomic(file, lines);
}

}  // namespace

ExitCode evaluate_command(Arguments args, Log& log, const World& world) {
  const Usage usage{
      .command = "megatron_cpp evaluate",
      .summary = "Measures a checkpoint: held-out perplexity of texts and datasets, accuracy on likelihood tasks.",
      .positional = {},
      .required = {"load"}};
  EvaluateOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_identical_on_ranks("command line", join(args, "\n"), world.ranks, "pass every rank the same arguments");
  check_options(options);
  InferenceModel inference(options.inference, world, log);
  const i64 seq_length = inference.config().model.seq_length;
  check_input(options.window <= seq_length, "--window: ", options.window, " is above the model's seq_length ",
              seq_length);
  const i64 window = options.window > 0 ? options.window : seq_length;
  check_input(options.stride <= window, "--stride: ", options.stride, " is above the window of ", window,
              options.window > 0 ? " (--window)" : " (the model's seq_length)");
  Evaluation evaluation(options, inference, world.ranks, log);
  EvaluationReport report{
      .checkpoint = inference.checkpoint(), .dtype = inference.model().context().dtype, .texts = {}, .tasks = {}};
  // Only rank 0 reads the texts.
  report.texts = evaluation.score(
      unpack(broadcast_from_rank0(world.ranks, [&] { return pack(read_held_out(options, inference)); })));
  if (!options.tasks.empty()) report.tasks = evaluation.score_tasks(options.tasks);
  log_device_warnings(inference.model().context().device, log);
  run_on_rank0(world.ranks, [&] {
    if (!options.log_samples.empty()) write_samples(options.log_samples, report.tasks);
  });
  log.info(options.json ? report.as_json() : report.as_text());
  return ExitCode::Done;
}

}  // namespace mcpp

#include "data/preprocess/preprocess.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "base/thread_pool.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/loss_mask.h"
#include "data/preprocess/indexed_writer.h"

namespace mcpp {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the key of the tokens of conversations.
std::string conversation_key(JsonContent content) {
  return content == JsonContent::Messages ? "messages" : "completion";
}

/// Dataset of one key while it is written.
struct DatasetOutput {
  DatasetOutput(const std::string& output_key, const PreprocessOptions& options, const Tokenizer& tokenizer)
      : key(output_key),
        prefix(options.dataset_prefix(key)),
        is_loss_mask(options.is_loss_mask(key)),
        writer(prefix, options.rules_of(key).vocab_size_with(tokenizer)),
        documents(writer, options.rules_of(key), tokenizer) {}

  /// Publishes the dataset, which is not visible earlier.
  DatasetInfo finish() {
    const DatasetInfo info = documents.info();
    retract_dataset(prefix);
    write_dataset_info(prefix, info);
    writer.finish();
    return info;
  }
  /// Removes the files that finish() wrote.
  void remove() const {
    std::error_code ignored;
    for (const Path& path : {idx_path(prefix), bin_path(prefix), info_path(prefix)})
      std::filesystem::remove(path, ignored);
  }

  std::string key, prefix;
  bool is_loss_mask;
  IndexedDatasetWriter writer;
  DocumentWriter documents;
};

/// Progress line on a terminal, updated every log_interval seconds.
class TokenProgress {
 public:
  TokenProgress(const PreprocessOptions& options, u64 total_bytes, const Log& log)
      : interval_(static_cast<double>(options.log_interval)), total_bytes_(total_bytes), log_(log) {}

  void update(u64 done_bytes, const DocumentWriter& output) {
    const double elapsed = seconds();
    if (!log_.is_live() || elapsed < next_) return;
    next_ = elapsed + interval_;
    log_.progress(str("preprocess ", human_count(static_cast<double>(output.documents())), " documents, ",
                      human_count(static_cast<double>(output.tokens())), " tokens, ",
                      format_progress(done_bytes, total_bytes_, elapsed)));
  }
  double seconds() const { return seconds_since(start_); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double interval_, next_ = 0;
  u64 total_bytes_;
  const Log& log_;
};

}  // namespace

bool PreprocessOptions::is_loss_mask(const std::string& key) const {
  return has_loss_mask() && key == kLossMaskKey;
}

std::string PreprocessOptions::dataset_prefix(const std::string& key) const {
  if (!is_loss_mask(key)) return output_prefix + "_" + key + "_document";
  return loss_mask_prefix(dataset_prefix(conversation_key(json_content))).string();
}

DocumentOutputRules PreprocessOptions::rules_of(const std::string& key) const {
  DocumentOutputRules rules{.append_eod = append_eod, .keep_empty = keep_empty};
  if (!has_loss_mask()) return rules;
  rules.has_eod = true;
  rules.has_loss_mask = !is_loss_mask(key);
  if (is_loss_mask(key)) rules.vocab_size = kLossMaskValues;
  return rules;
}

std::vector<std::string> output_keys(const PreprocessOptions& options, const std::vector<bool>& are_json_lines) {
  if (options.has_loss_mask()) {
    check_input(std::ranges::find(are_json_lines, false) == are_json_lines.end(),
                "--json_content=", enum_name(options.json_content),
                ": needs JSON lines, not plain text; pass --input_format=json_lines if the files have them");
    return {std::string(kLossMaskKey), conversation_key(options.json_content)};
  }
  check_json_keys_are_used(options.json_keys, are_json_lines, "--json_keys");
  const bool any_json = std::ranges::find(are_json_lines, true) != are_json_lines.end();
  const bool any_text = std::ranges::find(are_json_lines, false) != are_json_lines.end();
  const std::vector<std::string> text{"text"};
  if (!any_json) return text;
  check_input(!options.json_keys.empty(), "preprocess: json_keys is empty; list the keys to tokenize");
  check_input(!any_text || options.json_keys == text,
              "preprocess: plain text together with JSON needs json_keys = [\"text\"]");
  return options.json_keys;
}

void check_preprocess_options(const PreprocessOptions& options) {
  check_input(!options.input.empty(), "preprocess: input is empty; list text or JSONL files");
  check_input(!options.output_prefix.empty(), "preprocess: output_prefix is empty");
  check_input(!options.tokenizer_model.empty(), "preprocess: tokenizer_model is empty; set it to a tokenizer file");
  check_input(options.has_loss_mask() || options.chat_template.empty(),
              "--chat_template: applies only to --json_content=messages or prompt_completion; set that, or remove it");
  check_input(!options.has_loss_mask() || options.json_keys == PreprocessOptions().json_keys,
              "--json_keys: --json_content=", enum_name(options.json_content), " reads fixed keys; remove it");
}

/// Returns the input files for a message: the first few, and the number of others.
static std::string describe_input(const PreprocessOptions& options) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = std::min(options.input.size(), kShown), others = options.input.size() - shown;
  const std::string names = join({options.input.begin(), options.input.begin() + static_cast<i64>(shown)}, ", ");
  return others == 0 ? names : str(names, " and ", others, " more");
}

void check_has_content(const PreprocessOptions& options, const std::string& key, i64 tokens, const DatasetInfo& info) {
  const std::string input = describe_input(options);
  if (options.has_loss_mask()) {
    check_input(tokens > 0, "preprocess: ", input, ": the input has no conversations or completions; check --input");
    check_input(info.targets != 0, "preprocess: ", input, ": none of the tokens has a loss; the conversations have no ",
                "message with the role \"assistant\", or all completions are empty");
    return;
  }
  check_input(tokens > 0, "preprocess: ", input, ": the input has no text for the output ", options.dataset_prefix(key),
              "; check --input", options.json_keys.size() > 1 ? str(" and the key \"", key, "\" of --json_keys") : "");
}

void warn_of_early_ends(const ChunkTokenizer& tokenizer, const Log& log) {
  if (!tokenizer.ends_documents_early()) return;
  log.warn(
      "the chat template writes the token that ends documents after each answer, so that data.reset_attention_mask and "
      "data.reset_position_ids separate the turns of a conversation; prefer conversations of one turn");
}

namespace {

std::vector<PreprocessOutput> finish_all(std::vector<std::unique_ptr<DatasetOutput>>& outputs,
                                         const PreprocessOptions& options) {
  for (const auto& output : outputs)
    check_has_content(options, output->key, output->documents.tokens(), output->documents.info());
  std::vector<PreprocessOutput> results;
  for (const auto& output : outputs) retract_dataset(output->prefix);  // a loss mask and its tokens appear together
  try {
    for (const auto& output : outputs) results.push_back({output->prefix, output->finish(), output->is_loss_mask});
  } catch (...) {
    for (std::size_t i = 0; i <= results.size(); ++i) outputs[i]->remove();
    throw;
  }
  return results;
}

}  // namespace

PreprocessResult run_preprocess(const PreprocessOptions& options, const Log& log) {
  check_preprocess_options(options);
  const DocumentFormat format = options.format();
  InputFiles files(options.input, format, kTokenizedChunkBytes);
  const Tokenizer tokenizer{Path(options.tokenizer_model)};
  std::vector<std::unique_ptr<DatasetOutput>> outputs;
  for (const std::string& key : output_keys(options, files.are_json_lines()))
    outputs.push_back(std::make_unique<DatasetOutput>(key, options, tokenizer));
  const ChunkTokenizer tokenized(format, options.conversation(), tokenizer);
  warn_of_early_ends(tokenized, log);

  PreprocessResult result;
  TokenProgress progress(options, files.total_bytes(), log);
  const i64 cores = std::max<i64>(1, std::thread::hardware_concurrency());
  ordered_parallel(
      options.workers > 0 ? options.workers : cores, [&] { return files.next(); },
      [&](InputFiles::Chunk raw) { return tokenized.tokenize(std::move(raw)); },
      [&](const TokenizedChunk& chunk) {
        for (std::size_t k = 0; k < chunk.by_key.size(); ++k) {
          for (const TokenSegment& segment : chunk.by_key[k]) outputs[k]->documents.add(segment);
        }
        result.malformed_lines += chunk.malformed;
        progress.update(chunk.progress, outputs.back()->documents);
      });
  for (const auto& output : outputs) result.empty_documents += output->documents.empty_documents();
  result.outputs = finish_all(outputs, options);
  result.seconds = progress.seconds();
  return result;
}

}  // namespace mcpp

#include "data/prepare/preprocess.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/strings.h"
#include "data/prepare/indexed_writer.h"
#include "data/prepare/input_files.h"
#include "data/prepare/thread_pool.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {
namespace {

// Part of the result: longer documents are tokenised in pieces of about this size, cut after a line where there is one.
// A model that puts a space before every text, such as Llama's, puts one before each piece.
constexpr std::size_t kPieceBytes = std::size_t{1} << 19;

struct TokenSegment {
  std::vector<i32> tokens;
  i64 bytes = 0, words = 0;
  bool ends_document = true;
};

struct TokenisedPiece {
  std::vector<std::vector<TokenSegment>> by_key;
  i64 malformed = 0;
  u64 progress = 0;  // bytes of input files read up to here
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TokenisedPiece tokenise(InputFiles::Piece raw, const DocumentFormat& format, const Tokenizer& tokenizer) {
  PieceDocuments documents = parse_piece(raw.path, std::move(raw.piece), format);
  TokenisedPiece result;
  result.malformed = documents.malformed;
  result.progress = raw.progress;
  for (const auto& segments : documents.by_key) {
    auto& out = result.by_key.emplace_back();
    for (const Segment& segment : segments) {
      out.push_back({tokenizer.encode(segment.text), static_cast<i64>(segment.text.size()), count_words(segment.text),
                     segment.ends_document});
    }
  }
  return result;
}

/// One key's dataset while it is written.
class Output {
 public:
  Output(const std::string& prefix, const PreprocessOptions& options, const Tokenizer& tokenizer)
      : prefix_(prefix), options_(options), writer_(prefix, tokenizer.vocab_size()) {
    info_.tokenizer_checksum = tokenizer.checksum();
    info_.vocab_size = tokenizer.vocab_size();
    info_.eod = tokenizer.eod();
    info_.append_eod = options.append_eod;
  }

  void add(const TokenSegment& segment) {
    writer_.add_tokens(segment.tokens);
    info_.source_bytes += segment.bytes;
    info_.source_words += segment.words;
    if (segment.ends_document) end_document();
  }
  PreprocessOutput finish() {
    info_.documents = writer_.num_documents();
    info_.tokens = writer_.num_tokens();
    writer_.finish();
    write_dataset_info(prefix_, info_);
    return {prefix_, info_};
  }
  /// Takes back what finish() wrote, when a later output fails.
  void remove() const {
    std::error_code ignored;
    for (const Path& path : {idx_path(prefix_), bin_path(prefix_), info_path(prefix_)}) {
      std::filesystem::remove(path, ignored);
    }
  }
  const std::string& prefix() const { return prefix_; }
  i64 empty_documents() const { return empty_documents_; }
  i64 tokens() const { return writer_.num_tokens() + writer_.open_tokens(); }
  i64 documents() const { return writer_.num_documents(); }

 private:
  void end_document() {
    if (writer_.open_tokens() == 0) {  // nothing to end; Megatron-LM notes such a document, but gives it no <eod>
      ++empty_documents_;
      if (options_.keep_empty) writer_.end_document();
      return;
    }
    if (options_.append_eod) writer_.add_tokens(std::vector{static_cast<i32>(info_.eod)});
    writer_.end_sequence();
    writer_.end_document();
  }

  std::string prefix_;
  const PreprocessOptions& options_;
  IndexedDatasetWriter writer_;
  DatasetInfo info_;
  i64 empty_documents_ = 0;
};

/// A live line on a terminal every log_interval seconds.
class Progress {
 public:
  Progress(const PreprocessOptions& options, u64 total_bytes, const Log& log)
      : interval_(static_cast<double>(options.log_interval)), total_bytes_(total_bytes), log_(log) {}

  void update(u64 done_bytes, const Output& output) {
    const double elapsed = seconds();
    if (!log_.is_live() || elapsed < next_) return;
    next_ = elapsed + interval_;
    log_.progress(str("preprocess ", human_count(static_cast<double>(output.documents())), " documents, ",
                      human_count(static_cast<double>(output.tokens())), " tokens, ",
                      describe_progress(done_bytes, total_bytes_, elapsed)));
  }
  double seconds() const { return seconds_since(start_); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double interval_, next_ = 0;
  u64 total_bytes_;
  const Log& log_;
};

/// JSON input has the keys of the options, plain text the key "text"; both may be given together only with that key.
std::vector<std::string> output_keys(const PreprocessOptions& options, const std::vector<std::string>& input) {
  const bool any_json = std::ranges::any_of(input, is_json_file);
  const bool any_text = !std::ranges::all_of(input, is_json_file);
  const std::vector<std::string> text{"text"};
  if (!any_json) return text;
  check_input(!options.json_keys.empty(), "preprocess: json_keys is empty; name the keys to tokenise");
  check_input(!any_text || options.json_keys == text,
              "preprocess: plain text together with JSON needs json_keys = [\"text\"]");
  return options.json_keys;
}

void check_options(const PreprocessOptions& options) {
  check_input(!options.input.empty(), "preprocess: input is empty; give text or JSONL files");
  check_input(!options.output_prefix.empty(), "preprocess: output_prefix is empty");
  check_input(!options.tokenizer_model.empty(), "preprocess: tokenizer_model is empty; give a tokenizer's file");
}

std::vector<PreprocessOutput> finish_all(std::vector<std::unique_ptr<Output>>& outputs) {
  for (const auto& output : outputs) {
    check_input(output->tokens() > 0, "preprocess: the input has no text for ", output->prefix());
  }
  std::vector<PreprocessOutput> results;
  try {
    for (const auto& output : outputs) results.push_back(output->finish());
  } catch (...) {
    for (std::size_t i = 0; i <= results.size(); ++i) outputs[i]->remove();
    throw;
  }
  return results;
}

}  // namespace

PreprocessResult run_preprocess(const PreprocessOptions& options, const Log& log) {
  check_options(options);
  const DocumentFormat format{options.json_keys, options.text_document, options.invalid_utf8, options.skip_malformed};
  InputFiles files(options.input, format, kPieceBytes);
  const Tokenizer tokenizer{Path(options.tokenizer_model)};
  std::vector<std::unique_ptr<Output>> outputs;
  for (const std::string& key : output_keys(options, files.paths())) {
    outputs.push_back(std::make_unique<Output>(str(options.output_prefix, "_", key, "_document"), options, tokenizer));
  }

  PreprocessResult result;
  Progress progress(options, files.total_bytes(), log);
  const i64 cores = std::max<i64>(1, std::thread::hardware_concurrency());
  ordered_parallel(
      options.workers > 0 ? options.workers : cores, [&] { return files.next(); },
      [&](InputFiles::Piece raw) { return tokenise(std::move(raw), format, tokenizer); },
      [&](const TokenisedPiece& piece) {
        for (std::size_t k = 0; k < piece.by_key.size(); ++k) {
          for (const TokenSegment& segment : piece.by_key[k]) outputs[k]->add(segment);
        }
        result.malformed_lines += piece.malformed;
        progress.update(piece.progress, *outputs[0]);
      });
  for (const auto& output : outputs) result.empty_documents += output->empty_documents();
  result.outputs = finish_all(outputs);
  result.seconds = progress.seconds();
  return result;
}

}  // namespace mcpp

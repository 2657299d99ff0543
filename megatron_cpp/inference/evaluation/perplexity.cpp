#include "megatron_cpp/inference/evaluation/perplexity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/dataset/loss_mask.h"
#include "data/preprocess/input_files.h"

namespace mcpp {
namespace {

/// Rejects datasets of a different tokenizer, whose tokens mean nothing to the model.
void check_tokenizer(const DatasetInfo& info, const Path& prefix, const InferenceModel& inference) {
  const std::string model_checksum = inference.tokenizer_checksum();
  check_input(model_checksum.empty() || model_checksum == info.tokenizer_checksum, info_path(prefix).string(),
              ": the dataset was made with a different tokenizer (checksum ", info.tokenizer_checksum,
              ") than the model was trained with (", model_checksum, "); preprocess the text again with that one");
}

/// Reads the loss mask of a dataset whose tokens follow one token in `held_out`.
void read_targets(const Path& prefix, const IndexedDataset& dataset, HeldOut& held_out) {
  const IndexedDataset mask(loss_mask_prefix(prefix));
  check_loss_mask(dataset, mask);
  held_out.words = held_out.bytes = 0;
  held_out.targets = {0};
  for (i64 sequence = 0; sequence < mask.num_sequences(); ++sequence) {
    const std::size_t begin = held_out.targets.size();
    held_out.targets.resize(begin + static_cast<std::size_t>(mask.length(sequence)));
    read_loss_mask(mask, sequence, 0, std::span(held_out.targets).subspan(begin));
  }
}

}  // namespace

HeldOut read_texts(const std::vector<std::string>& inputs, const DocumentFormat& format, const Tokenizer& tokenizer,
                   const SpecialTokens& special) {
  const i32 begin = special.text_begin(tokenizer), end = special.text_end(tokenizer);
  constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
  InputFiles files(inputs, format, kChunkBytes);
  HeldOut held_out{.name = join(files.paths(), ", "), .tokens = {}};
  std::string document;
  const auto end_document = [&] {
    if (document.empty()) return;
    if (!held_out.tokens.empty() && begin != end) held_out.tokens.push_back(end);
    held_out.tokens.push_back(begin);
    const std::vector<i32> ids = tokenizer.encode(document);
    held_out.tokens.insert(held_out.tokens.end(), ids.begin(), ids.end());
    held_out.words += count_words(document);
    held_out.bytes += static_cast<i64>(document.size());
    document.clear();
  };
  while (std::optional<InputFiles::Chunk> read = files.next()) {
    const ChunkDocuments parsed = parse_chunk(read->path, std::move(read->chunk), files.format());
    for (const Segment& segment : parsed.by_key[0]) {
      document += segment.text;
      if (segment.ends_document) end_document();
    }
  }
  check_input(!held_out.tokens.empty(), held_out.name, ": contains no text to evaluate");
  return held_out;
}

HeldOut read_dataset(const Path& prefix, const InferenceModel& inference) {
  const i64 vocab_size = inference.config().model.vocab_size;
  const IndexedDataset dataset(prefix);
  const std::optional<DatasetInfo> info = read_dataset_info(prefix);
  const DocumentRules rules = inference.document_rules();
  if (rules.has_starts() || rules.skips_first_tokens) check_ends_documents(dataset, rules.eod);
  HeldOut held_out{.name = prefix.string(), .tokens = {}};
  if (info) {
    check_tokenizer(*info, prefix, inference);
    held_out.tokens.push_back(static_cast<i32>(inference.special_tokens().bos.value_or(info->eod)));
    held_out.words = info->source_words;
    held_out.bytes = info->source_bytes;
  }
  for (i64 sequence = 0; sequence < dataset.num_sequences(); ++sequence) {
    const std::size_t begin = held_out.tokens.size();
    held_out.tokens.resize(begin + static_cast<std::size_t>(dataset.length(sequence)));
    dataset.read(sequence, 0, std::span(held_out.tokens).subspan(begin));
  }
  if (info && info->has_loss_mask()) read_targets(prefix, dataset, held_out);
  for (i32 token : held_out.tokens) {
    check_input(token >= 0 && token < vocab_size, prefix.string(), ".bin: token ", token,
                " is outside the model's vocabulary of ", vocab_size);
  }
  check_input(held_out.tokens.size() > 1, prefix.string(), ": holds no tokens to evaluate");
  return held_out;
}

std::string pack(const std::vector<HeldOut>& texts) {
  std::string bytes;
  const auto add = [&](const auto* data, std::size_t count) {
    const u64 size = count;
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
  };
  for (const HeldOut& text : texts) {
    add(text.name.data(), text.name.size());
    add(&text.words, 1);
    add(&text.bytes, 1);
    add(text.tokens.data(), text.tokens.size());
    add(text.targets.data(), text.targets.size());
  }
  return bytes;
}

std::vector<HeldOut> unpack(std::string_view bytes) {
  const auto take = [&]<class T>(std::vector<T>& values) {
    u64 count = 0;
    std::memcpy(&count, bytes.data(), sizeof(count));
    bytes.remove_prefix(sizeof(count));
    values.resize(count);
    std::memcpy(values.data(), bytes.data(), count * sizeof(T));
    bytes.remove_prefix(count * sizeof(T));
  };
  std::vector<HeldOut> texts;
  while (!bytes.empty()) {
    HeldOut& text = texts.emplace_back();
    std::vector<char> name;
    std::vector<i64> words, size;
    take(name), take(words), take(size), take(text.tokens), take(text.targets);
    text.name.assign(name.begin(), name.end());
    text.words = words[0];
    text.bytes = size[0];
  }
  return texts;
}

std::vector<EvaluationWindow> evaluation_windows(i64 tokens, i64 seq_length, i64 stride) {
  MCPP_CHECK(stride >= 1 && stride <= seq_length, "stride ", stride, " is not in [1, ", seq_length, "]");
  std::vector<EvaluationWindow> windows;
  for (i64 scored_to = 1; scored_to < tokens;) {  // tokens [1, scored_to) are scored
    const i64 step = windows.empty() ? seq_length : stride;
    const i64 end = std::min(tokens, scored_to + step);
    const i64 begin = std::max<i64>(0, end - 1 - seq_length);
    windows.push_back({begin, end - begin, end - scored_to});
    scored_to = end;
  }
  return windows;
}

double Perplexity::token_perplexity() const {
  return std::exp(loss());
}
double Perplexity::word_perplexity() const {
  return std::exp(nll / static_cast<double>(words));
}
double Perplexity::byte_perplexity() const {
  return std::exp(nll / static_cast<double>(bytes));
}
double Perplexity::bits_per_byte() const {
  return nll / static_cast<double>(bytes) / std::numbers::ln2;
}

namespace {

/// Texts that are scored together, in sequence.
struct TextGroup {
  std::vector<i32> tokens;
  std::vector<EvaluationWindow> windows;
  std::vector<std::size_t> ends;  ///< end of each text, in tokens
  std::vector<u8> targets;        ///< 1 for each token to score

  void add(const HeldOut& text, std::vector<EvaluationWindow> windows_of_text) {
    for (EvaluationWindow& window : windows_of_text) window.begin += static_cast<i64>(tokens.size());
    windows.insert(windows.end(), windows_of_text.begin(), windows_of_text.end());
    tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
    targets.insert(targets.end(), text.targets.begin(), text.targets.end());
    targets.resize(tokens.size(), 1);
    ends.push_back(tokens.size());
  }
};

bool is_counted(i32 before, i32 token, const EvaluationOptions& options) {
  const bool is_first = options.documents.skips_first_tokens && before == options.documents.eod;
  return !is_first && token != options.begin_token;
}

void score(GPTModel& stage, ParallelState& parallel, TextGroup group, const EvaluationOptions& options,
           std::vector<Perplexity>& results) {
  std::ranges::stable_sort(group.windows, std::greater{}, &EvaluationWindow::length);
  const TokenScores scores = score_windows(
      stage, parallel, group.tokens, group.windows,
      {.micro_batch_size = options.micro_batch_size, .documents = options.documents, .progress = options.progress});
  std::size_t begin = 0;
  for (const std::size_t end : group.ends) {
    Perplexity& result = results.emplace_back();
    for (std::size_t i = begin + 1; i < end; ++i) {
      if (group.targets[i] == 0 || !is_counted(group.tokens[i - 1], group.tokens[i], options)) continue;
      result.nll += scores.nll[i];
      ++result.tokens;
    }
    begin = end;
  }
}

}  // namespace

std::vector<Perplexity> evaluate_texts(GPTModel& stage, ParallelState& parallel, std::span<const HeldOut> texts,
                                       const EvaluationOptions& options) {
  // Texts of similar lengths share a batch if there are many of them. Larger groups would need more memory.
  constexpr i64 kWindowsPerGroup = 1024;
  const auto enough =
      static_cast<std::size_t>(std::max(kWindowsPerGroup, batches_per_round(parallel) * options.micro_batch_size));
  std::vector<Perplexity> results;
  for (TextGroup group; results.size() < texts.size(); group = {}) {
    while (results.size() + group.ends.size() < texts.size() && group.windows.size() < enough) {
      const HeldOut& text = texts[results.size() + group.ends.size()];
      group.add(text, evaluation_windows(std::ssize(text.tokens), options.window, options.stride));
    }
    score(stage, parallel, std::move(group), options, results);
  }
  return results;
}

}  // namespace mcpp

#include "data/preprocess/verify.h"

#include <algorithm>

#include "base/check.h"
#include "base/program/progress.h"
#include "base/strings.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/loss_mask.h"
#include "data/dataset/sampler.h"

namespace mcpp {
namespace {

constexpr i64 kChunkTokens = 1 << 16;

/// Collects statistics of the token ids.
class IdStatistics {
 public:
  IdStatistics(const Path& prefix, i64 vocab_size) : prefix_(prefix), vocab_size_(vocab_size) {}

  void add(std::span<const i32> tokens, i64 document, i64 offset) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const i32 id = tokens[i];
      check_input(id >= 0 && (vocab_size_ == 0 || id < vocab_size_), bin_path(prefix_).string(), ": document ",
                  document, ", token ", offset + static_cast<i64>(i), ": id ", id, " is outside the vocabulary 0 .. ",
                  vocab_size_ - 1);
      if (static_cast<std::size_t>(id) >= seen_.size()) seen_.resize(static_cast<std::size_t>(id) + 1, false);
      seen_[static_cast<std::size_t>(id)] = true;
    }
  }
  void summarize(DatasetSummary& summary) const {
    summary.distinct_ids = std::count(seen_.begin(), seen_.end(), true);
    summary.largest_id = std::max(0, static_cast<i32>(seen_.size()) - 1);
    summary.smallest_id = static_cast<i32>(std::find(seen_.begin(), seen_.end(), true) - seen_.begin());
  }

 private:
  const Path& prefix_;
  i64 vocab_size_;
  std::vector<bool> seen_;  // [largest id + 1]
};

/// Returns the last token, or -1 for an empty sequence.
i32 verify_sequence(const IndexedDataset& source, i64 sequence, i64 document, IdStatistics& ids,
                    std::vector<i32>& buffer) {
  i32 last = -1;
  for (i64 offset = 0; offset < source.length(sequence); offset += kChunkTokens) {
    buffer.resize(static_cast<std::size_t>(std::min(kChunkTokens, source.length(sequence) - offset)));
    source.read(sequence, offset, buffer);
    ids.add(buffer, document, offset);
    last = buffer.back();
  }
  return last;
}

void check_info(const Path& prefix, const DatasetInfo& info, const DatasetSummary& actual_summary) {
  const auto check_equal = [&](std::string_view what, i64 stated, i64 actual) {
    check_input(stated == actual, info_path(prefix).string(), ": states ", stated, " ", what, ", but the dataset has ",
                actual, "; the files do not belong together");
  };
  check_equal("documents", info.documents, actual_summary.documents);
  check_equal("tokens", info.tokens, actual_summary.tokens);
}

/// Reads the entire loss mask. Returns the number of tokens with a loss.
i64 verify_loss_mask(const Path& prefix, const IndexedDataset& source) {
  const IndexedDataset mask(loss_mask_prefix(prefix));
  check_loss_mask(source, mask);
  i64 targets = 0;
  std::vector<u8> buffer;
  for (i64 sequence = 0; sequence < mask.num_sequences(); ++sequence) {
    for (i64 offset = 0; offset < mask.length(sequence); offset += kChunkTokens) {
      buffer.resize(static_cast<std::size_t>(std::min(kChunkTokens, mask.length(sequence) - offset)));
      read_loss_mask(mask, sequence, offset, buffer);
      targets += std::ranges::count(buffer, u8{1});
    }
  }
  return targets;
}

}  // namespace

DatasetSummary verify_dataset(const Path& prefix, i64 vocab_size, const Log& log) {
  const IndexedDataset source(prefix);
  DatasetSummary summary;
  summary.prefix = prefix.string();
  summary.token_type = source.token_type();
  summary.documents = source.num_documents();
  summary.sequences = source.num_sequences();
  summary.tokens = source.num_tokens();
  summary.info = read_dataset_info(prefix);
  if (summary.info) {
    check_info(prefix, *summary.info, summary);
    if (vocab_size == 0) vocab_size = summary.info->vocab_size;
  }
  IdStatistics ids(prefix, vocab_size);
  std::vector<i32> buffer;
  Progress progress(log, "verify " + prefix.string(),
                    {.total = static_cast<double>(summary.documents), .unit = "documents"});
  for (i64 d = 0; d < summary.documents; ++d) {
    i32 last = -1;
    for (i64 s = source.document_begin(d); s < source.document_begin(d + 1); ++s) {
      const i64 length = source.length(s);
      summary.shortest = s == 0 ? length : std::min(summary.shortest, length);
      summary.longest = std::max(summary.longest, length);
      summary.empty_sequences += length == 0;
      last = verify_sequence(source, s, d, ids, buffer);
    }
    summary.documents_with_eod += summary.info && last == summary.info->eod;
    if (d % 64 == 0) progress.update(static_cast<double>(d));
  }
  ids.summarize(summary);
  if (summary.info && summary.info->has_loss_mask()) {
    summary.targets = verify_loss_mask(prefix, source);
    check_input(summary.targets == summary.info->targets, info_path(prefix).string(), ": states ",
                summary.info->targets, " tokens with a loss, but the loss mask has ", summary.targets);
  }
  return summary;
}

std::string to_text(const DatasetSummary& s) {
  std::ostringstream out;
  const auto mean = static_cast<double>(s.tokens) / static_cast<double>(std::max<i64>(s.sequences, 1));
  out << s.prefix << ": intact\n"
      << "  " << s.documents << " documents, " << s.sequences << " sequences, " << s.tokens << " tokens ("
      << token_type_name(s.token_type) << ")\n"
      << "  sequence length " << s.shortest << " to " << s.longest << ", mean " << mean << "; " << s.empty_sequences
      << " empty\n"
      << "  ids " << s.smallest_id << " to " << s.largest_id << ", " << s.distinct_ids << " different\n";
  if (s.info) {
    out << "  " << s.documents_with_eod << " documents end with <eod>; " << s.info->source_words << " words, "
        << s.info->source_bytes << " bytes of text; tokenizer of " << s.info->vocab_size << " pieces, checksum "
        << s.info->tokenizer_checksum << "\n";
    if (s.info->has_loss_mask()) out << "  loss mask: " << s.targets << " of the tokens have a loss\n";
  }
  return out.str();
}

namespace {

/// Returns the text of `tokens` in which control tokens are shown by their names.
std::string text_with_marks(std::span<const i32> tokens, const Tokenizer& tokenizer) {
  std::string text;
  StreamDecoder decoder(tokenizer);
  for (const i32& token : tokens) {
    // A model that adds a space to every text drops it from the decoded text.
    const bool is_space = tokenizer.piece(token) == "\xE2\x96\x81";
    const bool is_control = token == tokenizer.eod() || (!is_space && tokenizer.decode(std::span(&token, 1)).empty());
    text += is_control ? decoder.finish() : decoder.add(token);
    if (is_control) text += token == tokenizer.eod() ? str(kEodPiece, "\n") : tokenizer.piece(token);
  }
  return text + decoder.finish();
}

/// Returns the text of a sample with each end of a document marked: by its <eod> or, if it has none, by a note.
std::string marked_text(const SampleView& view, const Tokenizer& tokenizer) {
  if (view.origin.is_rearranged) return text_with_marks(view.tokens, tokenizer);
  std::string text;
  std::span<const i32> left = view.tokens;
  for (std::size_t i = 0; i < view.origin.parts.size(); ++i) {
    const SamplePart& part = view.origin.parts[i];
    std::span<const i32> tokens = left.first(static_cast<std::size_t>(part.length));
    left = left.subspan(tokens.size());
    const bool has_eod = tokens.back() == tokenizer.eod();
    const bool has_end = i + 1 < view.origin.parts.size() && view.origin.parts[i + 1].document != part.document;
    text += text_with_marks(tokens, tokenizer);
    if (has_end && !has_eod) text += "<end of document>\n";
  }
  return text;
}

}  // namespace

SampleView show_sample(const Dataset& dataset, i64 sample, const Tokenizer* tokenizer) {
  check_input(sample >= 0 && sample < dataset.size(), "sample ", sample, " is not in the dataset of ", dataset.size(),
              " samples");
  SampleView view;
  view.sample = sample;
  view.origin = dataset.origin(sample);
  view.tokens.resize(static_cast<std::size_t>(dataset.seq_length() + 1));
  view.targets.resize(view.tokens.size());
  dataset.read(sample, view.tokens, view.targets);
  if (tokenizer) view.text = marked_text(view, *tokenizer);
  return view;
}

std::vector<SampleView> show_batch(const Dataset& dataset, i64 consumed_samples, i64 global_batch_size,
                                   const Tokenizer* tokenizer) {
  std::vector<SampleView> views;
  for (const i64 sample : global_batch_samples(consumed_samples, global_batch_size)) {
    views.push_back(show_sample(dataset, sample, tokenizer));
  }
  return views;
}

namespace {

/// Returns the ranges [begin, end) of tokens with a loss, up to 16.
std::vector<std::pair<std::size_t, std::size_t>> ranges_of(const std::vector<u8>& targets) {
  constexpr std::size_t kMaxRanges = 16;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == 0) continue;
    if (i > 0 && targets[i - 1] != 0)
      ranges.back().second = i + 1;
    else if (ranges.size() < kMaxRanges)
      ranges.emplace_back(i, i + 1);
    else
      break;
  }
  return ranges;
}

}  // namespace

std::string to_text(const SampleView& view) {
  std::ostringstream out;
  out << "sample " << view.sample << ": " << view.origin.prefix << ", sample " << view.origin.dataset_sample
      << " of dataset " << view.origin.dataset << "\n";
  for (const SamplePart& part : view.origin.parts) {
    out << "  document " << part.document;
    if (part.sequence != part.document) out << " (sequence " << part.sequence << ")";
    out << ", tokens " << part.offset << " to " << part.offset + part.length - 1 << "\n";
  }
  const auto targets = std::ranges::count(view.targets, u8{1});
  if (targets < std::ssize(view.targets)) {
    out << "  " << targets << " of " << view.targets.size() << " tokens have a loss:";
    for (const auto& [begin, end] : ranges_of(view.targets)) out << ' ' << begin << " to " << end - 1;
    out << "\n";
  }
  if (!view.text.empty()) out << view.text << (view.text.ends_with('\n') ? "" : "\n");
  return out.str();
}

}  // namespace mcpp

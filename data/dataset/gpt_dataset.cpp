#include "data/dataset/gpt_dataset.h"

#include <algorithm>

#include "base/check.h"
#include "base/integer_math.h"
#include "data/dataset/loss_mask.h"

namespace mcpp {
namespace {

TokenRange token_range(const GptDatasetSpec& spec) {
  return {.first_token = spec.first_token.value(), .samples = spec.num_samples.value()};
}

EpochPlan checked_plan(const IndexedDataset& source, const GptDatasetSpec& spec) {
  const std::string name = source.prefix().string();
  check_input(
      spec.range.size() > 0, name, ": the ", spec.split_name, " split has no documents (the dataset has ",
      source.num_sequences(),
      "); increase its share in data.split, use more documents (by default, preprocess makes a single one from a text "
      "file; --text_document=paragraph or line makes many), or set the share to 0 to disable the split");
  const i64 tokens = count_tokens(source, spec.range);
  check_input(tokens > spec.seq_length, name, ": the ", spec.split_name, " split has only ", tokens,
              " tokens; one sample needs ", spec.seq_length + 1,
              " (seq_length + 1); increase its share in data.split, add text, or lower seq_length");
  if (!spec.first_token) return plan_epochs(tokens, spec.seq_length, spec.num_samples);
  const i64 end = token_range(spec).end(spec.seq_length);
  return {.tokens_per_epoch = tokens,
          .epochs = ceil_div(end, tokens) - *spec.first_token / tokens,
          .samples = *spec.num_samples};
}

/// Logs the index build before it starts, since it is slow for a long training run.
void log_index_build(const IndexedDataset& source, const GptDatasetSpec& spec, const EpochPlan& plan, const Log& log) {
  constexpr i64 kMinSamples = 10'000'000;
  if (plan.samples < kMinSamples) return;
  log.info(str("data: building the index of ", human_count(static_cast<double>(plan.samples)), " ", spec.split_name,
               " samples of ", source.prefix().string()));
}

}  // namespace

GptDataset::GptDataset(StoredRef<IndexedDataset> source, const GptDatasetSpec& spec, const Path& cache_folder,
                       const Log& log, const IndexRanks& ranks)
    : source_(source),
      spec_(spec),
      plan_(checked_plan(source, spec)),
      indices_(cached_index(
          cache_folder, "gpt", description(),
          [&](const IndexBuildOptions& options) {
            log_index_build(source, spec, plan_, log);
            SampleIndices built =
                spec.first_token
                    ? build_range_indices(source, spec.range, spec.seq_length, spec.seed, token_range(spec), options)
                    : build_sample_indices(source, spec.range, spec.seq_length, spec.seed, plan_, options);
            std::vector<std::vector<u32>> arrays;
            arrays.push_back(std::move(built.document_index));
            arrays.push_back(std::move(built.sample_index));
            arrays.push_back(std::move(built.shuffle_index));
            return arrays;
          },
          ranks, log)) {}

/// Excludes the path so that a moved dataset keeps its cached indices while a changed one invalidates them.
std::string GptDataset::description() const {
  const std::string text =
      str("gpt dataset indices 1\nidx ", source_.index_checksum(), "\nbin bytes ", source_.bin_bytes(), "\nsequences ",
          spec_.range.begin, " ", spec_.range.end, "\nseq_length ", spec_.seq_length, "\nseed ", spec_.seed);
  if (spec_.first_token) return str(text, "\nfirst token ", *spec_.first_token, "\nsamples ", plan_.samples, "\n");
  return str(text, "\nepochs ", plan_.epochs, "\nseparate_final_epoch ", plan_.separate_final_epoch, "\n");
}

template <class Visit>
void GptDataset::for_each_part(i64 sample, Visit&& visit) const {
  MCPP_CHECK(sample >= 0 && sample < size(), "sample ", sample, " of ", size());
  const std::size_t at = 2 * std::size_t{shuffle_index()[static_cast<std::size_t>(sample)]};
  MCPP_CHECK(at + 1 < sample_index().size(), "shuffle_index holds ", at / 2);
  std::size_t position = sample_index()[at];
  i64 offset = sample_index()[at + 1];
  for (i64 remaining = spec_.seq_length + 1; remaining > 0; ++position, offset = 0) {
    MCPP_CHECK(position < document_index().size(), "the concatenated documents end inside sample ", sample);
    const i64 sequence = document_index()[position];
    const i64 length = std::min(remaining, source_.length(sequence) - offset);
    if (length > 0) visit(sequence, offset, length);
    remaining -= length;
  }
}

void GptDataset::read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const {
  MCPP_CHECK(static_cast<i64>(tokens.size()) == spec_.seq_length + 1, "the output has ", tokens.size(),
             " tokens, not seq_length + 1");
  std::ranges::fill(targets, u8{1});
  for_each_part(sample, [&](i64 sequence, i64 offset, i64 length) {
    const auto count = static_cast<std::size_t>(length);
    source_.read(sequence, offset, tokens.first(count));
    tokens = tokens.subspan(count);
    if (targets.empty()) return;
    if (spec_.loss_mask) read_loss_mask(*spec_.loss_mask, sequence, offset, targets.first(count));
    targets = targets.subspan(count);
  });
}

SampleOrigin GptDataset::origin(i64 sample) const {
  SampleOrigin origin;
  origin.prefix = source_.prefix().string();
  origin.dataset_sample = sample;
  for_each_part(sample, [&](i64 sequence, i64 offset, i64 length) {
    origin.parts.push_back({source_.document_of(sequence), sequence, offset, length});
  });
  origin.shuffled_sample = shuffle_index()[static_cast<std::size_t>(sample)];
  return origin;
}

}  // namespace mcpp

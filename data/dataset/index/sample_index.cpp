#include "data/dataset/index/sample_index.h"

#include <bit>
#include <limits>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/integer_math.h"
#include "base/philox.h"
#include "data/dataset/index/index_cache.h"

namespace mcpp {

RandomState::RandomState(i64 seed) : generator_(static_cast<u32>(seed)) {
  check_input(seed >= 0 && seed <= std::numeric_limits<u32>::max(), "the data seed ", seed,
              " is outside 0 .. 4294967295");
}

u64 RandomState::interval(u64 max) {
  if (max == 0) return 0;
  const u64 mask = ~u64{0} >> std::countl_zero(max);
  const bool wide = max > std::numeric_limits<u32>::max();
  u64 value = 0;
  do {
    value = generator_();
    if (wide) value = value << 32 | generator_();
    value &= mask;
  } while (value > max);
  return value;
}

namespace {

constexpr const char* kWhat = "the index of the samples";
constexpr i64 kMaxEntries = std::numeric_limits<u32>::max() - i64{1};

/// Appends `epochs` repetitions of the range and shuffles them together.
void append_epochs(std::vector<u32>& index, SequenceRange range, i64 epochs, RandomState& random,
                   const IndexBuildOptions& options) {
  const std::size_t begin = index.size();
  index.reserve(begin + static_cast<std::size_t>(epochs * range.size()));
  for (i64 epoch = 0; epoch < epochs; ++epoch) {
    options.throw_if_canceled(kWhat);
    for (i64 i = range.begin; i < range.end; ++i) index.push_back(static_cast<u32>(i));
  }
  random.shuffle(std::span(index).subspan(begin), [&] { options.throw_if_canceled(kWhat); });
}

std::vector<u32> build_document_index(SequenceRange range, const EpochPlan& plan, RandomState& random,
                                      const IndexBuildOptions& options) {
  std::vector<u32> index;
  const i64 together = plan.separate_final_epoch ? plan.epochs - 1 : plan.epochs;
  append_epochs(index, range, together, random, options);
  if (plan.separate_final_epoch) append_epochs(index, range, 1, random, options);
  return index;
}

/// Walks the concatenated sequences from token `offset` of the first one, and records where each sample begins.
std::vector<u32> build_sample_index(const IndexedDataset& source, std::span<const u32> documents, i64 samples,
                                    i64 seq_length, const IndexBuildOptions& options, i64 offset = 0) {
  std::vector<u32> index;
  index.reserve(2 * static_cast<std::size_t>(samples + 1));
  std::size_t position = 0;
  index.insert(index.end(), {0, static_cast<u32>(offset)});
  for (i64 sample = 0; sample < samples; ++sample) {
    options.throw_if_canceled(kWhat);
    i64 remaining = seq_length + 1;
    while (true) {
      const i64 available = source.length(documents[position]) - offset;
      if (available >= remaining) break;
      remaining -= available;
      ++position;
      offset = 0;
    }
    offset += remaining - 1;  // the last token of this sample is the first of the next
    index.insert(index.end(), {static_cast<u32>(position), static_cast<u32>(offset)});
  }
  return index;
}

std::vector<u32> build_shuffle_index(const EpochPlan& plan, RandomState& random, const IndexBuildOptions& options) {
  const auto check = [&] { options.throw_if_canceled(kWhat); };
  std::vector<u32> index(static_cast<std::size_t>(plan.samples));
  std::iota(index.begin(), index.end(), 0u);
  const std::size_t first =
      plan.separate_final_epoch ? static_cast<std::size_t>(plan.samples_sans_final_epoch) : index.size();
  random.shuffle(std::span(index).first(first), check);
  random.shuffle(std::span(index).subspan(first), check);
  return index;
}

}  // namespace

EpochPlan plan_epochs(i64 tokens_per_epoch, i64 seq_length, std::optional<i64> num_samples) {
  MCPP_CHECK(tokens_per_epoch > 0 && seq_length > 0, tokens_per_epoch, " tokens, seq_length ", seq_length);
  EpochPlan plan{.tokens_per_epoch = tokens_per_epoch};
  if (num_samples) {
    check_input(*num_samples <= std::numeric_limits<i64>::max() / 4 / seq_length, *num_samples, " samples of ",
                seq_length, " tokens exceed 2^61 tokens; train for fewer iterations");
    const i64 needed = *num_samples * seq_length + 1;
    plan.epochs = std::max<i64>(1, ceil_div(needed, tokens_per_epoch));
  }
  plan.samples = (plan.epochs * tokens_per_epoch - 1) / seq_length;
  if (plan.epochs > 1) {
    plan.samples_sans_final_epoch = ((plan.epochs - 1) * tokens_per_epoch - 1) / seq_length;
    const i64 from_final_epoch = *num_samples - plan.samples_sans_final_epoch;
    const i64 samples_per_epoch = (tokens_per_epoch - 1) / seq_length;
    plan.separate_final_epoch = from_final_epoch < static_cast<i64>(0.80 * static_cast<double>(samples_per_epoch));
  }
  return plan;
}

i64 count_tokens(const IndexedDataset& source, SequenceRange range) {
  i64 tokens = 0;
  for (i64 i = range.begin; i < range.end; ++i) tokens += source.length(i);
  return tokens;
}

SampleIndices build_sample_indices(const IndexedDataset& source, SequenceRange range, i64 seq_length, i64 seed,
                                   const EpochPlan& plan, const IndexBuildOptions& options) {
  check_input(
      plan.samples <= kMaxEntries && plan.epochs <= kMaxEntries / range.size(), source.prefix().string(), ": ",
      plan.samples, " samples of ", plan.epochs, " epochs over ", range.size(),
      " documents are more than one index can hold (", kMaxEntries,
      "); lower training.train_iters, train_samples or eval_iters, or preprocess the text into several datasets "
      "and blend them");
  check_index_fits(str(source.prefix().string(), ": ", plan.samples, " samples of ", plan.epochs, " epochs"),
                   plan.epochs * range.size() + 3 * plan.samples, options.copies);
  // All shuffles draw from one generator, in this order.
  RandomState random(seed);
  SampleIndices indices;
  indices.document_index = build_document_index(range, plan, random, options);
  indices.sample_index = build_sample_index(source, indices.document_index, plan.samples, seq_length, options);
  indices.shuffle_index = build_shuffle_index(plan, random, options);
  return indices;
}

namespace {

/// Returns a generator for one epoch, or for the samples of one stage. Generators are independent of each other.
RandomState derived_random(i64 seed, std::string_view what, i64 number) {
  const auto counter = static_cast<u64>(number);
  const Philox4 bits = philox4x32(philox_key(static_cast<u64>(seed), what),
                                  {static_cast<u32>(counter), static_cast<u32>(counter >> 32), 0, 0});
  return RandomState(bits[0]);
}

/// Sequences that overlap a range of tokens, and the offset of its first token in the first of them.
struct RangeDocuments {
  std::vector<u32> index;
  i64 first_offset = 0;
};

RangeDocuments find_range_documents(const IndexedDataset& source, SequenceRange range, i64 seed, i64 first_token,
                                    i64 end, const IndexBuildOptions& options) {
  const i64 tokens_per_epoch = count_tokens(source, range);
  RangeDocuments found;
  i64 epoch = first_token / tokens_per_epoch;
  for (i64 position = epoch * tokens_per_epoch; position < end; ++epoch) {
    RandomState random = derived_random(seed, "sequences of an epoch", epoch);
    std::vector<u32> order;
    append_epochs(order, range, 1, random, options);
    for (const u32 sequence : order) {
      const i64 begin = position;
      position += source.length(sequence);
      if (position <= first_token) continue;
      if (begin >= end) break;
      if (found.index.empty()) found.first_offset = first_token - begin;
      found.index.push_back(sequence);
    }
  }
  return found;
}

}  // namespace

SampleIndices build_range_indices(const IndexedDataset& source, SequenceRange range, i64 seq_length, i64 seed,
                                  const TokenRange& tokens, const IndexBuildOptions& options) {
  const i64 tokens_per_epoch = count_tokens(source, range), end = tokens.end(seq_length);
  const i64 epochs = ceil_div(end, tokens_per_epoch) - tokens.first_token / tokens_per_epoch;
  check_input(tokens.samples <= kMaxEntries && epochs <= kMaxEntries / range.size(), source.prefix().string(), ": ",
              tokens.samples, " samples of ", epochs, " epochs over ", range.size(),
              " documents are more than one index can hold (", kMaxEntries,
              "); shorten the stage, or preprocess the text into several datasets and blend them");
  check_index_fits(str(source.prefix().string(), ": ", tokens.samples, " samples of ", epochs, " epochs"),
                   (epochs + 1) * range.size() + 3 * tokens.samples, options.copies);
  RangeDocuments documents = find_range_documents(source, range, seed, tokens.first_token, end, options);
  SampleIndices indices;
  indices.document_index = std::move(documents.index);
  indices.sample_index =
      build_sample_index(source, indices.document_index, tokens.samples, seq_length, options, documents.first_offset);
  indices.shuffle_index.resize(static_cast<std::size_t>(tokens.samples));
  std::iota(indices.shuffle_index.begin(), indices.shuffle_index.end(), 0u);
  RandomState random = derived_random(seed, "samples of a stage", tokens.first_token);
  random.shuffle(std::span(indices.shuffle_index), [&] { options.throw_if_canceled(kWhat); });
  return indices;
}

}  // namespace mcpp

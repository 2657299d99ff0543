#include "data/dataset/blend.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// Reproduces numpy.sum: eight running sums over blocks of at most 128 elements; larger inputs are halved recursively
/// and added pairwise.
double numpy_sum(std::span<const double> v) {
  const std::size_t n = v.size();
  if (n > 128) {
    const std::size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(v.first(half)) + numpy_sum(v.subspan(half));
  }
  double sum = 0;
  std::size_t done = 0;
  if (n >= 8) {
    double r[8];
    for (std::size_t j = 0; j < 8; ++j) r[j] = v[j];
    for (done = 8; done + 8 <= n; done += 8) {
      for (std::size_t j = 0; j < 8; ++j) r[j] += v[done + j];
    }
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  }
  for (; done < n; ++done) sum += v[done];
  return sum;
}

/// Calls visit(dataset, sample of the dataset) for each sample of a blend (see BlendIndices).
template <class Visit>
void choose_datasets(const BlendWeights& weights, i64 size, const IndexBuildOptions& options, Visit&& visit) {
  const std::size_t datasets = weights.start.size();
  std::vector<u32> taken(datasets, 0);
  for (i64 sample = 0; sample < size; ++sample) {
    options.throw_if_canceled("the index of a blend");
    const double count = std::max(static_cast<double>(sample), 1.0);
    std::size_t best = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < datasets; ++d) {
      const double change =
          weights.is_constant() ? 0 : (weights.end[d] - weights.start[d]) * count / (2 * static_cast<double>(size));
      const double error = (weights.start[d] + change) * count - static_cast<double>(taken[d]);
      if (error > largest) largest = error, best = d;
    }
    visit(best, taken[best]++);
  }
}

void check_blend_size(i64 size, const std::string& split_name) {
  check_input(size < std::numeric_limits<u32>::max(), "the ", split_name, " blend of ", size,
              " samples is larger than an index can hold");
}

std::string blend_description(const BlendWeights& weights, i64 size) {
  std::ostringstream text;
  text << "blend indices 1\nsize " << size << "\nweights" << std::hexfloat;
  for (const double weight : weights.start) text << ' ' << weight;
  if (!weights.is_constant()) text << "\nend weights";
  for (const double weight : weights.end) text << ' ' << weight;
  text << '\n';
  return text.str();
}

}  // namespace

namespace {

/// Weight of a data path: constant, or its values at the first and the last sample.
struct EntryWeight {
  double start = 0, end = 0;
  bool is_constant = true;

  bool is_valid() const {
    const bool is_finite = std::isfinite(start) && std::isfinite(end) && start >= 0 && end >= 0;
    return is_finite && (is_constant ? start > 0 : start + end > 0);
  }
};

/// Returns the weight of "0.5" or "0.8:0.2"; std::nullopt for any other text.
std::optional<EntryWeight> parse_weight(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::optional<double> start = parse_number<double>(text.substr(0, colon));
  if (!start) return std::nullopt;
  if (colon == std::string_view::npos) return EntryWeight{*start, *start};
  const std::optional<double> end = parse_number<double>(text.substr(colon + 1));
  if (!end) return std::nullopt;
  return EntryWeight{*start, *end, /*is_constant=*/false};
}

bool has_positive_sum(const std::vector<double>& weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0) > 0;
}

}  // namespace

std::vector<double> BlendWeights::mean() const {
  std::vector<double> mean = start;
  for (std::size_t i = 0; i < end.size(); ++i) mean[i] = (start[i] + end[i]) / 2;
  return mean;
}

BlendWeights BlendWeights::normalized() const {
  return {normalize_weights(start), is_constant() ? std::vector<double>() : normalize_weights(end)};
}

BlendList parse_blend_list(const std::vector<std::string>& entries, std::string_view key) {
  check_input(!entries.empty(), key, ": is empty; list dataset prefixes, each optionally preceded by its weight");
  std::size_t num_weights = 0, num_at_weight_position = 0;  // entries that are numbers: all, and at weight positions
  for (std::size_t i = 0; i < entries.size(); ++i) {
    check_input(!entries[i].empty(), key, ": entry ", i + 1, " is empty");
    const bool is_number = parse_weight(entries[i]).has_value();
    num_weights += is_number;
    num_at_weight_position += is_number && i % 2 == 0;
  }
  if (num_weights == 0) return {.prefixes = entries, .weights = {}};
  check_input(
      entries.size() % 2 == 0 && num_weights == num_at_weight_position && num_weights == entries.size() / 2, key,
      ": mixes ", num_weights, " weights and ", entries.size() - num_weights,
      " prefixes; list either prefixes alone, or a weight before each prefix: [\"0.3\", \"a\", \"0.7\", \"b\"]");
  BlendList list;
  bool is_constant = true;
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const EntryWeight weight = *parse_weight(entries[i]);
    check_input(weight.is_valid(), key, ": the weight ", entries[i], " of ", entries[i + 1],
                " must be a number above 0, or two numbers such as 0.8:0.2, of which one may be 0");
    list.weights.start.push_back(weight.start);
    list.weights.end.push_back(weight.end);
    list.prefixes.push_back(entries[i + 1]);
    is_constant = is_constant && weight.is_constant;
  }
  check_input(has_positive_sum(list.weights.start) && has_positive_sum(list.weights.end), key,
              ": all weights are 0 at the ", has_positive_sum(list.weights.start) ? "end" : "start");
  if (is_constant) list.weights.end.clear();
  return list;
}

std::vector<double> normalize_weights(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> result(weights.begin(), weights.end());
  for (double& weight : result) weight /= sum;
  return result;
}

i64 blend_target(i64 num_samples, double normalized_weight) {
  return static_cast<i64>(std::ceil(static_cast<double>(num_samples) * normalized_weight));
}

i64 blend_target_with_surplus(i64 num_samples, double normalized_weight) {
  return static_cast<i64>(std::ceil(static_cast<double>(blend_target(num_samples, normalized_weight)) * (1 + 0.005)));
}

BlendIndices build_blend_indices(const BlendWeights& weights, i64 size, const IndexBuildOptions& options) {
  BlendIndices indices;
  indices.dataset_index.reserve(static_cast<std::size_t>(size));
  indices.dataset_sample_index.reserve(static_cast<std::size_t>(size));
  choose_datasets(weights, size, options, [&](std::size_t dataset, u32 sample) {
    indices.dataset_index.push_back(static_cast<u32>(dataset));
    indices.dataset_sample_index.push_back(sample);
  });
  return indices;
}

std::vector<i64> count_blend_samples(const BlendWeights& weights, i64 size, const Path& folder, const Log& log,
                                     const IndexRanks& ranks) {
  check_blend_size(size, "train");
  const auto count = [&](const IndexBuildOptions& options) {
    std::vector<u32> counts(weights.start.size(), 0);
    choose_datasets(weights, size, options, [&](std::size_t dataset, u32) { ++counts[dataset]; });
    return std::vector<std::vector<u32>>{std::move(counts)};
  };
  const IndexArrays counts =
      cached_index(folder, "blend-counts", "counts of " + blend_description(weights, size), count, ranks, log);
  return {counts[0].begin(), counts[0].end()};
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<Dataset>> parts, const BlendWeights& weights, i64 size,
                               const std::string& split_name, const Path& cache_folder, const Log& log,
                               const IndexRanks& ranks)
    : parts_(std::move(parts)) {
  MCPP_CHECK(!parts_.empty() && parts_.size() == weights.start.size(), parts_.size(), " parts, ", weights.start.size(),
             " weights");
  check_blend_size(size, split_name);
  const BlendWeights shares = weights.normalized();
  indices_ = cached_index(
      cache_folder, "blend", blend_description(shares, size),
      [&](const IndexBuildOptions& options) {
        check_index_fits(str("the ", split_name, " blend of ", size, " samples"), 2 * size, options.copies);
        BlendIndices built = build_blend_indices(shares, size, options);
        std::vector<std::vector<u32>> arrays;
        arrays.push_back(std::move(built.dataset_index));
        arrays.push_back(std::move(built.dataset_sample_index));
        return arrays;
      },
      ranks, log);
  std::vector<i64> needed(parts_.size(), 0);
  for (std::size_t i = 0; i < dataset_index().size(); ++i) {
    MCPP_CHECK(dataset_index()[i] < parts_.size(), "dataset ", dataset_index()[i], " of ", parts_.size());
    needed[dataset_index()[i]] = i64{dataset_sample_index()[i]} + 1;
  }
  for (std::size_t d = 0; d < parts_.size(); ++d) {
    check_input(needed[d] <= parts_[d]->size(), "the ", split_name, " blend draws ", needed[d], " samples of ",
                parts_[d]->origin(0).prefix, ", which has ", parts_[d]->size());
  }
}

void BlendedDataset::read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const {
  MCPP_CHECK(sample >= 0 && sample < size(), "sample ", sample, " of ", size());
  const auto i = static_cast<std::size_t>(sample);
  parts_[dataset_index()[i]]->read(dataset_sample_index()[i], tokens, targets);
}

SampleOrigin BlendedDataset::origin(i64 sample) const {
  MCPP_CHECK(sample >= 0 && sample < size(), "sample ", sample, " of ", size());
  const auto i = static_cast<std::size_t>(sample);
  SampleOrigin origin = parts_[dataset_index()[i]]->origin(dataset_sample_index()[i]);
  origin.dataset = dataset_index()[i];
  return origin;
}

}  // namespace mcpp

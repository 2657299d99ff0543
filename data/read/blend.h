// Several datasets read in given proportions, as Megatron-LM's BlendedDataset.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "data/read/dataset.h"
#include "data/read/index/index_cache.h"

namespace mcpp {

/// A parsed data_path: prefixes, and their weights when given.
struct BlendList {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  ///< empty: the parts are read once, in proportion to their size
};

/// Prefixes alone, or weight and prefix in turn. BadInput, naming `key`, when it is neither.
BlendList parse_blend_list(const std::vector<std::string>& entries, std::string_view key);

/// Divided by their sum, added in numpy's order: the last bit can decide which dataset a sample comes from.
std::vector<double> normalized(std::span<const double> weights);

/// Samples a weighted part contributes, ceil(n * w), and those built for it: half a percent more, since rounding may
/// draw a few extra.
i64 blend_target(i64 num_samples, double normalized_weight);
i64 blend_target_with_surplus(i64 num_samples, double normalized_weight);

/// For each of `size` samples the dataset, and its running number within that dataset. Greedy: sample i goes to the
/// dataset whose share so far is furthest below weight * max(i, 1); the first one wins a tie. Weights sum to 1.
struct BlendIndices {
  std::vector<u32> dataset_index, dataset_sample_index;
};
BlendIndices build_blend_indices(std::span<const double> weights, i64 size, const IndexBuild& how = {});

class BlendedDataset : public Dataset {
 public:
  /// Weights need not be normalised. `split_name` is for messages. Called by all of `ranks`.
  BlendedDataset(std::vector<std::unique_ptr<Dataset>> parts, std::span<const double> weights, i64 size,
                 const std::string& split_name, const Path& cache_folder, const Log& log,
                 const IndexRanks& ranks = OneIndexRank());

  i64 size() const override { return static_cast<i64>(dataset_index().size()); }
  i64 seq_length() const override { return parts_.front()->seq_length(); }
  void at(i64 sample, std::span<i32> out) const override;
  SampleOrigin origin(i64 sample) const override;

  const Dataset& part(i64 i) const { return *parts_[static_cast<std::size_t>(i)]; }
  std::span<const u32> dataset_index() const { return indices_[0]; }         ///< [size]
  std::span<const u32> dataset_sample_index() const { return indices_[1]; }  ///< [size]

 private:
  std::vector<std::unique_ptr<Dataset>> parts_;
  IndexArrays indices_;
};

}  // namespace mcpp

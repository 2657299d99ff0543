// From the data section of the configuration to the three datasets of a run.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "data/config.h"
#include "data/read/dataset.h"
#include "data/read/index/indexed_dataset.h"
#include "data/read/index/sample_index.h"

namespace mcpp {

inline constexpr std::array<const char*, 3> kSplitNames{"train", "valid", "test"};

/// The sequences of a dataset that belong to training, validation and test, for shares such as "969,30,1"; none where
/// the share is 0. Bounds are rounded as Megatron-LM does (half to even). BadInput when the text is not up to three
/// numbers that add up to more than 0.
std::array<std::optional<SequenceRange>, 3> split_ranges(const std::string& split, i64 num_sequences);

/// Held-out text with a loss of its own.
struct ValidationSet {
  std::string name;  ///< of its dataset; "" where there is but one set
  std::unique_ptr<Dataset> dataset;
};

struct Datasets {
  std::vector<std::unique_ptr<IndexedDataset>> sources;  ///< read by the datasets below, so they live as long
  std::unique_ptr<Dataset> train, test;                  ///< null when not asked for or without a share
  std::vector<ValidationSet> validation;                 ///< empty as above; several as data.multiple_validation_sets

  const Dataset* valid() const { return validation.empty() ? nullptr : validation[0].dataset.get(); }
};

/// What sets are called: the file names of their prefixes, without "_text_document"; where two would have one name, the
/// whole prefixes.
std::vector<std::string> validation_set_names(const std::vector<std::string>& prefixes);

/// `num_samples` of train, valid, test; each dataset holds at least as many, by repeating its text for as many epochs
/// as needed; those for validation just one epoch with data.full_validation. 0 = not built. A blend without weights is
/// never repeated: asking for more than it holds is an error. The same text in train_data_path and in valid_data_path
/// or test_data_path is an error. All errors are BadInput. Called by all of `ranks`, of which one of each folder of
/// indices builds them.
Datasets build_train_valid_test_datasets(const DataConfig& config, i64 seq_length, i64 seed,
                                         std::array<i64, 3> num_samples, const Log& log,
                                         const IndexRanks& ranks = OneIndexRank());

}  // namespace mcpp

// Construction of the training, validation and test datasets from the data section of the configuration.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "data/config.h"
#include "data/dataset/dataset.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/dataset/index/sample_index.h"
#include "data/dataset/stage_text.h"

namespace mcpp {

inline constexpr std::array<const char*, 3> kSplitNames{"train", "valid", "test"};

/// Returns the sequence ranges of training, validation and test for shares such as "969,30,1"; std::nullopt where the
/// share is 0. Bounds are rounded as in Megatron-LM (half to even). Throws BadInput unless `split` is one to three
/// numbers with a positive sum.
std::array<std::optional<SequenceRange>, 3> split_ranges(const std::string& split, i64 num_sequences);

/// Validation dataset whose loss is reported separately.
struct ValidationSet {
  std::string name;  ///< name of the dataset; "" if there is only one
  std::unique_ptr<Dataset> dataset;
};

struct Datasets {
  std::vector<std::unique_ptr<IndexedDataset>> sources;  ///< sources of the datasets below; must outlive them
  std::unique_ptr<Dataset> train, test;                  ///< nullptr if not requested or without a share
  std::vector<ValidationSet> validation;                 ///< empty if not requested or without a share
  /// Token at which each stage so far began to read each dataset, in the order of first use, [stages][datasets]; ends
  /// with -1 if the stage repeats data. Empty for a run without stages.
  std::vector<std::vector<i64>> stage_starts = {};

  const Dataset* valid() const { return validation.empty() ? nullptr : validation[0].dataset.get(); }
};

/// Returns the names of the validation sets: the file names of the prefixes without "_text_document", or the full
/// prefixes if the file names are not unique.
std::vector<std::string> validation_set_names(const std::vector<std::string>& prefixes);

/// Builds the three datasets. Collective over `ranks`; one rank per index folder builds the indices.
///
/// `num_samples` is for train, valid and test; 0 means not built. A dataset holds at least that many samples and
/// repeats its text for as many epochs as needed; with data.full_validation, validation sets hold exactly one epoch. A
/// blend without weights is never repeated, so requesting more samples than it holds is an error. Throws BadInput on
/// any error, including a dataset that is in train_data_path and also in valid_data_path or test_data_path.
///
/// In a run with stages, `stages` has the texts of the stages up to the current one, whose data, sequence length and
/// number of samples are also in the other arguments. The training samples are then those of build_range_indices(). A
/// dataset of several stages continues where the stage before stopped; after its last token it begins again in a new
/// order, except in a blend without weights.
Datasets build_train_valid_test_datasets(const DataConfig& config, i64 seq_length, i64 seed,
                                         std::array<i64, 3> num_samples, const Log& log,
                                         const IndexRanks& ranks = SingleIndexRank(),
                                         std::span<const StageText> stages = {});

}  // namespace mcpp

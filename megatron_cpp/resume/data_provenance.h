// Identity of the text that a run reads: it must not change on resume and must be the same on all ranks.
#pragma once
#include <map>
#include <string>

#include "base/log.h"
#include "checkpoint/format/manifest.h"
#include "comm/communicator.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Maps a key such as "data.data_path" to the joined dataset_identity() of all its datasets.
using DatasetIdentities = std::map<std::string, std::string>;

/// Returns the identities of all datasets of the configuration. Throws BadInput, on all ranks, if any rank cannot read
/// a dataset or reads a different one. Collective over `world`.
DatasetIdentities identify_datasets(const Config& config, Communicator& world);

/// Content identity of a run's inputs, as stored in its checkpoints.
struct DataProvenance {
  std::string tokenizer_checksum = {};
  DatasetIdentities datasets = {};
};

/// Stores `sources` in a checkpoint's state.
void store_sources(const DataProvenance& sources, RunState& run);

/// Returns `saved`, the configuration of a checkpoint, with dataset paths replaced by those of `config` if the contents
/// are known to be identical: files that were moved are the same text.
Config with_moved_datasets(Config saved, const Config& config, const DatasetIdentities& now, const RunState& run);

/// Throws BadInput naming every dataset that differs from the one that `checkpoint` was trained on. If
/// checkpoint.allow_changed_keys names the key of a dataset, warns instead. Checkpoints of earlier versions have no
/// dataset identities and pass.
void check_same_datasets(const Config& config, const DatasetIdentities& now, const RunState& run,
                         const std::string& checkpoint, const Log& log);

}  // namespace mcpp

// Whether a run still reads the text that it began with, and the same on all ranks.
#pragma once
#include <map>
#include <string>

#include "base/log.h"
#include "checkpoint/format/run_state.h"
#include "comm/communicator.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// dataset_identity() of all datasets of a key such as "data.data_path", joined, by that key.
using DatasetIdentities = std::map<std::string, std::string>;

/// Called by all ranks of `world`; BadInput on all when one of them cannot read a dataset, or reads another one.
DatasetIdentities identify_datasets(const Config& config, Communicator& world);

/// What a run reads, by content, as its checkpoints say it.
struct RunSources {
  std::string tokenizer_checksum = {};
  DatasetIdentities datasets = {};
};

/// Leaves them in what a checkpoint says.
void note_sources(const RunSources& sources, RunState& run);

/// Returns `saved`, the configuration of a checkpoint, with the dataset paths of `config` in place of its own where the
/// checkpoint knows the contents and they are the same: files that were moved are the same text.
Config with_moved_datasets(Config saved, const Config& config, const DatasetIdentities& now, const RunState& run);

/// Throws BadInput naming every dataset that is not the one that `checkpoint` was trained on. If
/// checkpoint.allow_changed_keys names the key of a dataset, warns instead. A checkpoint of an earlier version says
/// nothing about datasets.
void check_same_datasets(const Config& config, const DatasetIdentities& now, const RunState& run,
                         const std::string& checkpoint, const Log& log);

}  // namespace mcpp

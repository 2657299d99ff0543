// Parts of the commands that write a checkpoint to a new folder.
#pragma once
#include <optional>
#include <string>

#include "base/log.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Returns the element type that --precision names; std::nullopt if it is empty. Throws BadInput for other names.
std::optional<DType> dtype_option(const std::string& precision);

/// Rejects folders of runs: the run would resume from a checkpoint written there.
void check_without_checkpoints(const Path& folder);

/// Returns the tokenizer file of a checkpoint: `requested` or, if `requested` is "", the tokenizer saved with the
/// checkpoint. Returns "" if there is none, with a warning if the checkpoint was trained with a tokenizer. Throws
/// BadInput if it differs from the tokenizer used in training.
Path find_valid_tokenizer(const std::string& requested, const CheckpointReader& reader, const Config& config,
                          const Log& log);

/// Saves a newly created model together with its tokenizer, whose content is `tokenizer` ("" if it has none). The
/// tokenizer is written first, so that no checkpoint lacks it, and removed if saving the checkpoint fails.
Path save_model(const Path& folder, const std::string& tokenizer, const RunState& state, ShardSource& source,
                const Log& log);

}  // namespace mcpp

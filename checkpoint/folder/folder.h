// A checkpoint folder: <folder>/iter_0000100/ for each saved iteration, and `latest`, a text file with the name of the
// one to resume from. `latest` is a hint: what counts is which directories are sound.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/format/damage.h"
#include "checkpoint/format/input_file.h"
#include "comm/communicator.h"

namespace mcpp {

inline constexpr std::string_view kLatestName = "latest";

/// "iter_0000100".
std::string checkpoint_name(i64 iteration);
/// The inverse; std::nullopt for names of anything else.
std::optional<i64> iteration_of(const std::string& name);

/// The directories with a checkpoint's name, by ascending iteration. A folder that does not exist has none.
std::vector<Path> checkpoints_in(const Path& folder);

/// The directory that `latest` names; std::nullopt when it is absent, or names no directory here.
std::optional<Path> latest_in(const Path& folder);
/// Makes `latest` name this checkpoint of its folder where it names an earlier one, or none: as a process leaves it
/// that died when its checkpoint was complete, and `latest` not written yet.
void move_latest_up_to(const Path& checkpoint);

/// What is wrong with a checkpoint: the manifest, missing or surplus files, sizes and, with `checksums`, every byte.
/// Each line names the file, and the tensors in it when they can be told. Empty when it is sound.
/// `read` hears of the bytes that are read.
std::vector<std::string> problems_of(const Path& directory, bool checksums = true, const BytesListener& read = {});

/// The checkpoints of a folder in the order in which to try them: what `latest` names, or a higher iteration completed
/// after `latest` was written, comes first. Called by all ranks, which get the same answer.
std::vector<Path> checkpoints_to_try(const Path& folder, Communicator& world, const Log& log);

/// problems_of(), the ranks sharing the files: what the first that found any says, on all ranks.
std::optional<Damage> defect_of_files(const Path& directory, Communicator& world, bool checksums = false);

/// What the log says of a checkpoint that is passed over.
std::string damage_warning(const Path& directory, const std::string& problem);

}  // namespace mcpp

// A checkpoint folder: <folder>/iter_0000100/ for each saved iteration, and `latest`, a text file with the name of the
// one to resume from.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/damage.h"
#include "checkpoint/format/input_file.h"
#include "comm/communicator.h"

namespace mcpp {

inline constexpr std::string_view kLatestName = "latest";
/// Name of the record that begin_publication() writes.
inline constexpr std::string_view kNextName = "latest.next";

/// "iter_0000100".
std::string checkpoint_name(i64 iteration);
/// The inverse; std::nullopt for names of anything else.
std::optional<i64> iteration_of(const std::string& name);

/// The directories with a checkpoint's name, by ascending iteration. A folder that does not exist has none.
std::vector<Path> checkpoints_in(const Path& folder);

/// Returns the directory that `latest` names; std::nullopt when it is absent, or names no directory here.
std::optional<Path> latest_in(const Path& folder);
/// Makes `latest` name this checkpoint of its folder where it names an earlier one, or none, and ends its publication.
void move_latest_up_to(const Path& checkpoint);

/// Records that `staging`, complete but for its name, is about to become this checkpoint of its folder. A process that
/// dies before end_publication() leaves the record, which tells a checkpoint that `latest` does not name yet from one
/// that a user rejected by setting `latest` back.
void begin_publication(const Path& checkpoint, const Path& staging);
/// Makes `latest` name the checkpoint and removes the record.
void end_publication(const Path& checkpoint);

/// Removes the record of begin_publication() unless it names a complete checkpoint that `latest` does not name yet.
void remove_stale_publication(const Path& folder);

/// Returns the checkpoints of a folder in the order in which every command tries them: the one that `latest` names
/// first, then older ones, then those above `latest`, which a user set back. A checkpoint whose publication was cut
/// off comes before all. Without `latest` the newest is first. Throws BadInput when `latest` names no checkpoint of the
/// folder. Depends on contents alone: copies of the folder give the same order.
std::vector<Path> checkpoints_in_order(const Path& folder);

/// What is wrong with a checkpoint: the manifest, missing or surplus files, sizes and, with `checksums`, every byte.
/// Each line names the file, and the tensors in it when they can be told. Empty when it is sound.
/// `read` hears of the bytes that are read.
std::vector<std::string> problems_of(const Path& directory, bool checksums = true, const BytesListener& read = {});

/// Returns checkpoints_in_order() as rank 0 sees it, on all ranks. Called by all ranks.
std::vector<Path> checkpoints_to_try(const Path& folder, Communicator& world);

/// problems_of(), the ranks sharing the files: what the first that found any says, on all ranks.
std::optional<Damage> defect_of_files(const Path& directory, Communicator& world, bool checksums = false);

/// What the log says of a checkpoint that is passed over.
std::string damage_warning(const Path& directory, const std::string& problem);

}  // namespace mcpp

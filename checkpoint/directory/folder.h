// Checkpoint folder: <folder>/iter_0000100/ for each saved iteration, and `latest`, a text file that names the one to
// resume from. A folder s3://<bucket>/<key> is in an object store; there, a checkpoint exists if it has a manifest.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/block_io.h"
#include "checkpoint/format/manifest.h"
#include "comm/communicator.h"

namespace mcpp {

inline constexpr std::string_view kLatestName = "latest";
/// Name of the file that begin_publication() writes.
inline constexpr std::string_view kNextName = "latest.next";

/// Returns the name of a checkpoint, such as "iter_0000100".
std::string checkpoint_name(i64 iteration);
/// Returns the iteration of a checkpoint name, or std::nullopt for any other name.
std::optional<i64> iteration_of(const std::string& name);

/// Returns the directories with a checkpoint name, by ascending iteration; none if the folder does not exist.
std::vector<Path> checkpoints_in(const Path& folder);

/// Returns true if the folder has a file or link `latest`, regardless of its target.
bool has_latest(const Path& folder);
/// Returns the directory that `latest` names; std::nullopt if `latest` is absent or names no directory of the folder.
std::optional<Path> latest_in(const Path& folder);
/// Points `latest` at this checkpoint if it names an earlier one or none, and ends the checkpoint's publication.
void advance_latest(const Path& checkpoint);

/// Records that `staging`, which is complete except for its name, is about to become this checkpoint of its folder. A
/// process that dies before end_publication() leaves the record, which distinguishes a checkpoint that `latest` does
/// not name yet from one that a user rejected by setting `latest` back.
void begin_publication(const Path& checkpoint, const Path& staging);
/// Makes `latest` name the checkpoint and removes the record.
void end_publication(const Path& checkpoint);

/// Removes the record of begin_publication() unless it names a complete checkpoint that `latest` does not name yet.
void remove_stale_publication(const Path& folder);

/// Returns the checkpoints in the order in which commands try them: an interrupted publication, the checkpoint that
/// `latest` names, older checkpoints, and newer checkpoints (if a user set `latest` back). Without `latest`, returns
/// the newest first. The order depends only on the contents, so copies of the folder have the same order. Throws
/// BadInput if `latest` does not name a checkpoint of the folder.
std::vector<Path> checkpoints_in_order(const Path& folder);

/// Checks the manifest, missing or extra files, sizes and, if `should_verify_checksums`, the checksums of all bytes of
/// a checkpoint. Returns a line for each problem, with the file and, if known, the tensors in it; empty if the
/// checkpoint is intact. `read` is called with the number of bytes that were read.
std::vector<std::string> find_problems(const Path& directory, bool should_verify_checksums = true,
                                       const BytesListener& read = {});

/// Returns checkpoints_in_order() as rank 0 sees it, on all ranks. Collective.
std::vector<Path> load_candidates(const Path& folder, Communicator& world);

/// Runs find_problems() with the files divided among the ranks. All ranks return the finding of the first rank that has
/// one. Collective.
std::optional<Damage> find_damage(const Path& directory, Communicator& world, bool should_verify_checksums = false);

/// Returns the log message for a checkpoint that is skipped.
std::string damage_warning(const Path& directory, const std::string& problem);

// Checks that a folder is shared and writable.

/// Throws BadInput on all ranks unless every rank can read from `folder` what rank 0 writes there, and can write to it.
/// This detects errors that would make the first save fail. `timeout` is the time that file servers may take to show a
/// file of a different host. Collective. The folder must exist on rank 0. Leaves no files behind.
void check_shared_folder(const Path& folder, Communicator& world,
                         std::chrono::milliseconds timeout = std::chrono::seconds(5));

/// Throws BadInput if this rank cannot create and remove a file in the folder.
void check_writable(const Path& folder);

/// Throws BadInput if the folder or, if it does not exist, its nearest existing parent is not writable. Leaves nothing
/// behind.
void check_writable_or_creatable(const Path& folder);

/// Throws BadInput if the folder, which need not exist yet, is an s3:// path, or is a checkpoint or inside one: files
/// that are not in the manifest would count as damage. `key` is the configuration key that named the folder, if any.
void check_outside_checkpoints(const Path& folder, std::string_view key = "");
/// Throws BadInput if the folder, which may be an s3:// path, is a checkpoint or inside one, or if it holds a Hugging
/// Face model, whose tokenizer a save would replace. The folder need not exist.
void check_save_folder(const Path& folder);
/// Applies check_outside_checkpoints() to the folder of a file that a command will write.
void check_file_outside_checkpoints(const Path& file, std::string_view key = "");

}  // namespace mcpp

// Whether files can be written in a folder: by all ranks, without harm.
#pragma once

#include "base/file.h"
#include "comm/communicator.h"

namespace mcpp {

/// Throws BadInput, on all ranks, unless every rank sees in `folder` what rank 0 writes there, and can write there
/// itself: otherwise the first save would fail, after hours. Called by all ranks; the folder exists on rank 0. Leaves
/// nothing behind.
void check_shared_folder(const Path& folder, Communicator& world);

/// BadInput when this rank cannot write and remove a file there.
void check_writable(const Path& folder);

/// BadInput when the folder, which need not exist yet, is a checkpoint or lies in one: what is there and not in the
/// manifest would count as damage.
void check_outside_checkpoints(const Path& folder);
/// The same for the folder of a file that a command is about to write.
void check_file_outside_checkpoints(const Path& file);

}  // namespace mcpp

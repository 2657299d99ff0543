// Whether files can be written in a folder: by all ranks, without harm.
#pragma once
#include <chrono>
#include <string_view>

#include "base/file.h"
#include "comm/communicator.h"

namespace mcpp {

/// Throws BadInput, on all ranks, unless every rank sees in `folder` what rank 0 writes there, and can write there
/// itself: otherwise the first save would fail, after hours. File servers may show another machine's file later, by
/// `patience` at most. Called by all ranks; the folder exists on rank 0. Leaves nothing behind.
void check_shared_folder(const Path& folder, Communicator& world,
                         std::chrono::milliseconds patience = std::chrono::seconds(5));

/// BadInput when this rank cannot write and remove a file there.
void check_writable(const Path& folder);

/// BadInput when the folder, which need not exist yet, is a checkpoint or lies in one: what is there and not in the
/// manifest would count as damage. `key`, if any, is of the configuration, which named it.
void check_outside_checkpoints(const Path& folder, std::string_view key = "");
/// The same for the folder of a file that a command is about to write.
void check_file_outside_checkpoints(const Path& file, std::string_view key = "");

}  // namespace mcpp

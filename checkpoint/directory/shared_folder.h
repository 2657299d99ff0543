// Checks that a folder is shared and writable.
#pragma once
#include <chrono>
#include <string_view>

#include "base/file.h"
#include "comm/communicator.h"

namespace mcpp {

/// Throws BadInput on all ranks unless every rank sees in `folder` what rank 0 writes there, and can write there
/// itself, so that the first save does not fail after hours. `patience`: how long file servers may take to show another
/// machine's file. Collective; the folder must exist on rank 0. Leaves no files behind.
void check_shared_folder(const Path& folder, Communicator& world,
                         std::chrono::milliseconds patience = std::chrono::seconds(5));

/// Throws BadInput if this rank cannot create and remove a file in the folder.
void check_writable(const Path& folder);

/// Throws BadInput if the folder, or the nearest one above it that exists, cannot be written. Leaves nothing behind.
void check_can_be_written(const Path& folder);

/// Throws BadInput if the folder, which need not exist yet, is a checkpoint or is inside one: files that are not in the
/// manifest would count as damage. `key`: configuration key that named the folder, if any.
void check_outside_checkpoints(const Path& folder, std::string_view key = "");
/// Throws BadInput if the folder, which need not exist yet, is a Hugging Face model.
void check_holds_no_model(const Path& folder);
/// Checks the folder of a file that a command will write, like check_outside_checkpoints().
void check_file_outside_checkpoints(const Path& file, std::string_view key = "");

}  // namespace mcpp

// Writer of one rank's file of a checkpoint.
#pragma once
#include "base/io/file_system.h"
#include "checkpoint/format/manifest.h"

namespace mcpp {

/// Writes all non-empty shards to a new HDF5 file, durably, with one shard in memory at a time. Shard k of a name
/// becomes the dataset "<name>/<k>" with attributes that state its position in the global tensor. Returns a manifest
/// with this file; if there is nothing to write, creates no file and returns an empty manifest. Throws BadInput if the
/// disk is full, with the bytes needed and free, and for every failed write.
Manifest write_shard_file(const Path& path, ShardSource& source, const FileSystem& files);

}  // namespace mcpp

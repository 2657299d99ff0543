// One rank's file of a checkpoint.
#pragma once
#include "checkpoint/folder/file_system.h"
#include "checkpoint/format/manifest.h"

namespace mcpp {

/// Writes all shards that have elements to a new HDF5 file, durably, one shard in memory at a time. Shard k of a name
/// becomes the dataset "<name>/<k>" with its place in the global tensor as attributes. Returns a manifest with this one
/// file, or an empty one, and no file, when there is nothing to write.
/// Throws BadInput when the disk is full, with the bytes needed and free, and for every failed write.
Manifest write_shard_file(const Path& path, ShardSource& source, const FileSystem& files);

}  // namespace mcpp

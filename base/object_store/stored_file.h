// Small files and whole copies, by paths that name files or, if they begin with s3://, objects of an S3-compatible
// store. Server, credentials and cache are read from the environment (s3_settings.h, node_cache.h). Errors name the
// path.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Returns true if a file or object of this name exists. A folder is neither. A bucket that does not exist or to which
/// access is denied is an error (S3Client).
bool stored_file_exists(const Path& path);
/// Returns the size of a file or object; std::nullopt if it does not exist.
std::optional<i64> stored_file_bytes(const Path& path);
/// Returns the content of a text file or object; throws BadInput if it does not exist.
std::string read_stored_text(const Path& path);
/// Atomically creates or replaces a file or object.
void write_stored_text(const Path& path, std::string_view text);
/// Removes a file or object; succeeds if it does not exist.
void remove_stored_file(const Path& path);

/// Returns the path of a complete local copy of an object, made in the cache of the node if necessary; `path` itself
/// for files. The copy has the object's present content. Open it soon (NodeCache::fetch()).
Path local_copy(const Path& path);
/// Removes `copy`, which local_copy(path) returned and which turned out to be damaged, so that it is made again. Does
/// nothing for files. Errors, such as that another process removed it, are ignored.
void remove_local_copy(const Path& path, const Path& copy) noexcept;

// Objects only.

/// Returns the size and ETag of an object, which change with its content; "" if it does not exist.
std::string object_stamp(const Path& path);
/// Returns the names of the folders in an s3:// folder, by ascending name.
std::vector<std::string> object_folders(const Path& folder);
/// Returns the paths of the objects in an s3:// folder and its subfolders, by ascending name; only those that were last
/// changed at least `min_age_seconds` ago, by the clocks of the store and of this host.
std::vector<Path> objects_in(const Path& folder, i64 min_age_seconds = 0);
/// Uploads a file in parts. The object appears completely or not at all.
void upload_file(const Path& file, const Path& object);

}  // namespace mcpp

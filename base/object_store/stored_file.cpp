#include "base/object_store/stored_file.h"

#include <ctime>

#include "base/check.h"
#include "base/object_store/node_cache.h"
#include "base/object_store/s3_client.h"
#include "base/object_store/s3_transfer.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

S3Client make_client() {
  return S3Client(read_s3_settings());
}

}  // namespace

bool stored_file_exists(const Path& path) {
  return stored_file_bytes(path).has_value();
}

std::optional<i64> stored_file_bytes(const Path& path) {
  if (is_s3_path(path)) {
    const std::optional<S3Object> object = make_client().find(S3Path::parse(path));
    return object ? std::optional(object->bytes) : std::nullopt;
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? std::nullopt : std::optional(static_cast<i64>(bytes));
}

std::string read_stored_text(const Path& path) {
  if (!is_s3_path(path)) return read_text_file(path);
  std::optional<std::string> text = make_client().get(S3Path::parse(path));
  check_input(text.has_value(), path.string(), ": does not exist in the object store");
  return *std::move(text);
}

void write_stored_text(const Path& path, std::string_view text) {
  if (is_s3_path(path))
    make_client().put(S3Path::parse(path), text);
  else
    write_file_atomic(path, text);
}

void remove_stored_file(const Path& path) {
  if (is_s3_path(path)) return make_client().remove(S3Path::parse(path));
  std::error_code error;
  std::filesystem::remove(path, error);
  check_input(!error, "cannot remove ", path.string(), ": ", error.message());
}

Path local_copy(const Path& path) {
  if (!is_s3_path(path)) return path;
  const S3Path object = S3Path::parse(path);
  S3Transfer transfer(read_s3_settings());
  return NodeCache(read_node_cache_settings()).fetch(object, transfer.head(object), transfer);
}

void remove_local_copy(const Path& path, const Path& copy) noexcept {
  std::error_code error;
  if (copy != path) std::filesystem::remove(copy, error);
}

std::string object_stamp(const Path& path) {
  const std::optional<S3Object> object = make_client().find(S3Path::parse(path));
  return object ? str(object->bytes, " bytes, ETag ", object->etag) : std::string();
}

std::vector<std::string> object_folders(const Path& folder) {
  return make_client().list_folders(S3Path::parse(folder));
}

std::vector<Path> objects_in(const Path& folder, i64 min_age_seconds) {
  const S3Path path = S3Path::parse(folder);
  const i64 newest = std::time(nullptr) - min_age_seconds;
  std::vector<Path> objects;
  for (const S3Object& object : make_client().list(path))
    if (min_age_seconds == 0 || (object.modified && *object.modified <= newest))
      objects.emplace_back(S3Path{path.bucket, object.key}.string());
  return objects;
}

void upload_file(const Path& file, const Path& object) {
  S3Transfer(read_s3_settings()).upload(file, S3Path::parse(object));
}

}  // namespace mcpp

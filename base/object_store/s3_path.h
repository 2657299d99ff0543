// Names of objects in an S3-compatible store: s3://<bucket>/<key>.
#pragma once
#include <string>
#include <string_view>

#include "base/file.h"

namespace mcpp {

/// Bucket and key of an object, or of a folder, whose key is a prefix of the keys of its objects.
struct S3Path {
  std::string bucket;
  std::string key;  ///< without a leading slash; "" = the bucket itself

  /// Parses "s3://bucket/key". Throws BadInput, naming the text, for other text, for bucket names that S3 does not
  /// allow, and for keys with the segments "." and "..".
  static S3Path parse(const std::string& text);  ///< also for a Path, which converts to std::string

  /// Returns "s3://bucket/key".
  std::string string() const { return "s3://" + bucket + "/" + key; }
  /// Returns the object `name` in this folder.
  S3Path operator/(std::string_view name) const;
};

/// Returns true if the text begins with "s3://".
bool is_s3_path(const std::string& text);

/// Returns the text with all bytes percent-encoded except letters, digits and "-._~", and except slashes if
/// `keeps_slashes`.
std::string percent_encode(std::string_view text, bool keeps_slashes);

}  // namespace mcpp

#include "checkpoint/directory/run_folder.h"

#include "base/object_store/node_cache.h"
#include "base/object_store/s3_path.h"

namespace mcpp {

Path run_folder(const Path& save) {
  if (!is_s3_path(save)) return save;
  const S3Path path = S3Path::parse(save);
  return read_node_cache_settings().folder / "runs" / path.bucket / path.key;
}

}  // namespace mcpp

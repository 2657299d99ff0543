#include "megatron_cpp/resume/run_metrics_object.h"

#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"

namespace mcpp {
namespace {

/// Returns the object with the metrics; "" if they are only in a local file.
Path metrics_object(const Config& config) {
  const Path save = config.checkpoint.save;
  return is_s3_path(save) && config.logging.metrics_path.empty() ? save / config.metrics_path().filename() : Path();
}

}  // namespace

void restore_metrics(const Config& config) {
  const Path object = metrics_object(config), file = config.metrics_path();
  if (object.empty() || stored_file_bytes(object).value_or(0) <= stored_file_bytes(file).value_or(0)) return;
  mcpp::create_directories(file.parent_path());
  write_file_atomic(file, read_stored_text(object));
}

void store_metrics(const Config& config, const Log& log) {
  const Path object = metrics_object(config), file = config.metrics_path();
  if (object.empty() || !stored_file_exists(file)) return;
  try {
    upload_file(file, object);
  } catch (const Error& error) {
    log.warn(str("the metrics are only in ", file.string(), " so far: ", error.what()));
  }
}

}  // namespace mcpp

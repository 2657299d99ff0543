// Copy of the metrics of a run next to its checkpoints in an object store.
#pragma once
#include "base/log.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Downloads the metrics that store_metrics() uploaded if the local file has fewer, as on a new node. Does nothing
/// unless checkpoint.save is an s3:// path and logging.metrics_path is empty.
void restore_metrics(const Config& config);

/// Uploads the metrics. A failure logs a warning.
void store_metrics(const Config& config, const Log& log);

}  // namespace mcpp

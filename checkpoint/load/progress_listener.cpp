#include "checkpoint/load/progress_listener.h"

#include <memory>
#include <utility>

#include "base/program/progress.h"

namespace mcpp {

CheckpointReader::ReadListener make_progress_listener(const Log& log, std::string what) {
  struct ProgressState {
    std::unique_ptr<Progress> progress;  // created on first use
    double done = 0, all = 0;
  };
  return [&log, what = std::move(what), shown = std::make_shared<ProgressState>()](i64 bytes, i64 all) {
    const auto total = static_cast<double>(all);
    if (!shown->progress || total != shown->all) {  // a new load begins
      *shown = {};
      shown->progress = std::make_unique<Progress>(log, what, ProgressOptions{.total = total});
      shown->all = total;
    }
    shown->progress->update(shown->done += static_cast<double>(bytes));
  };
}

}  // namespace mcpp

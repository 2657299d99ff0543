#include "plan/save_time.h"

#include "base/integer_math.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "model/flops.h"

namespace mcpp {

SaveTime save_time(const PredictionInput& job) {
  const Workload& work = job.work;
  const double element = real(size_of(work.dtype)), masters = work.dtype == DType::F32 ? 0 : 4;
  const HostRates& host = job.hardware.host;
  SaveTime save{.bytes =
                    real(count_parameters(work.model).total()) * (element + masters + 4 * work.states.matrix_states)};
  const double of_rank = save.bytes / real(job.layout.world_size);
  if (host.nvme_bandwidth > 0) save.seconds = of_rank / (1e9 * host.nvme_bandwidth);
  if (host.link_bandwidth > 0) save.stops = of_rank / (1e9 * host.link_bandwidth);
  return save;
}

std::string save_text(const PredictionInput& job, const SaveTime& save) {
  std::string text = str("a checkpoint has ", human_bytes(save.bytes));
  if (save.seconds == 0) return text + "; how fast disks are is not known (host.nvme_bandwidth)\n";
  text += str(": ", fixed(save.seconds, 1), " s on the local disks of ", job.layout.world_size, " devices");
  if (save.stops > 0) text += str(", of which the training waits for ", fixed(save.stops, 1), " s with async_save");
  return text + "\n";
}

}  // namespace mcpp

#include "tensor/out_of_memory.h"

#include <algorithm>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Returns settings that shrink the class, the cheapest first. Sharding only helps with more ranks.
std::string_view find_advice(MemoryClass c) {
  switch (c) {
    case MemoryClass::Params:
      return "training.precision = \"bf16\" instead of \"fp32\" halves them; parallel.zero_stage = 3 shares them among "
             "data-parallel ranks, parallel.tensor_model_parallel_size and parallel.pipeline_model_parallel_size share "
             "the model";
    case MemoryClass::Grads:
      return "parallel.zero_stage = 2 shares them among data-parallel ranks; parallel.tensor_model_parallel_size and "
             "parallel.pipeline_model_parallel_size share the model";
    case MemoryClass::OptimizerState:
      return "parallel.zero_stage = 1 shares it among data-parallel ranks; parallel.tensor_model_parallel_size and "
             "parallel.pipeline_model_parallel_size share the model; optimizer.offload = \"file\" keeps it on a disk";
    case MemoryClass::Activations:
      return "lower training.micro_batch_size; set training.recompute_granularity = \"selective\", or \"full\" for the "
             "least; raise parallel.tensor_model_parallel_size with parallel.sequence_parallel = true; or shorten "
             "model.seq_length";
    case MemoryClass::RecordedPasses:
      return "device.cuda_graph_impl = \"none\" needs none; a lower training.micro_batch_size needs less";
    case MemoryClass::Workspace:
    case MemoryClass::Other:
      break;
  }
  return "lower training.micro_batch_size or model.seq_length, or raise parallel.tensor_model_parallel_size";
}

std::string bytes_text(i64 bytes) {
  return human_bytes(static_cast<double>(bytes));
}

}  // namespace

std::string out_of_memory_text(const MemoryRequest& request, const MemoryTable& in_use, const SystemMemory& system) {
  std::array<i64, kMemoryClasses> bytes_by_class{};
  std::ranges::transform(in_use.by_class, bytes_by_class.begin(), [](const MemoryUse& use) { return use.bytes; });
  bytes_by_class[static_cast<std::size_t>(request.memory_class)] += request.bytes;
  const auto largest_class =
      static_cast<MemoryClass>(std::ranges::max_element(bytes_by_class) - bytes_by_class.begin());
  return str("out of memory: ", bytes_text(request.bytes), " more for ", name_of(request.memory_class),
             " could not be allocated; of ", bytes_text(system.total), " that the device has, ",
             bytes_text(system.free), " are free. In use:\n", in_use.to_string(), "The largest class is ",
             name_of(largest_class), ": ", find_advice(largest_class),
             ". --dry_run prints the memory that a configuration needs.");
}

}  // namespace mcpp

// The GPU that tests may use. Programs built without CUDA have none, and no tests for it; on a machine without one,
// tests for it say that they are skipped, and why.
#pragma once
#include <memory>
#include <string>

#include "tensor/device.h"
#include "tests/support/build.h"

namespace mcpp::test {

/// Empty where make_gpu() gives one.
std::string why_no_gpu();
/// A device of a GPU for one of several ranks, which share GPUs where there are fewer than ranks.
std::unique_ptr<Device> make_gpu(int rank = 0);

}  // namespace mcpp::test

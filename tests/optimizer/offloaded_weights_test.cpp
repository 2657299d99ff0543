// Weights offloaded to host memory or disk are transferred concurrently with compute, as on a GPU, and training results
// are bitwise identical.
#include <gtest/gtest.h>

#include <cstring>

#include "comm/local.h"
#include "optimizer/optimizer.h"
#include "parallel/dp/zero.h"
#include "tests/support/disk_folder.h"
#include "tests/support/layouts/dp_toy.h"
#include "tests/support/lazy_copies.h"

namespace mcpp {
namespace {

using test::LazyCopies;
using test::ToyModel;
using test::ToyTraining;
using Bytes = std::vector<std::byte>;

constexpr int kSteps = 3;

struct Case {
  OffloadTier weights = OffloadTier::Device, states = OffloadTier::Device;
  OptimizerKind kind = OptimizerKind::Adam;
  DType dtype = DType::BF16;
  bool overlap = true;
  bool quantized_weights = false;
  bool is_tied = false;
  bool has_remainders = false;
};

void append(const Tensor& t, Bytes& all) {
  const auto* data = static_cast<const std::byte*>(t.raw());
  all.insert(all.end(), data, data + t.bytes());
}

class OffloadedWeightsTest : public testing::Test {
 protected:
  OptimizerConfig optimizer_of(const Case& c) const {
    OptimizerConfig config;
    config.optimizer = c.kind;
    config.offload = c.states;
    config.offload_segment_size = 512;
    config.store_param_remainders = c.has_remainders;
    if (c.states == OffloadTier::File) config.offload_folder = folder_.path().string();
    return config;
  }

  /// Returns all weights that units used, and the final weights and states.
  Bytes train(const Case& c, Communicator& world) const {
    CpuDevice device;
    ToyModel model;
    const auto self = make_self_communicator();
    const LazyCopies* weight_copies = nullptr;
    const Layout layout{.zero_stage = 3,
                        .formats = {.quantized_weights = c.quantized_weights},
                        .overlap_grad_reduce = c.overlap,
                        .overlap_param_gather = c.overlap,
                        .params_tier = c.weights};
    const ParamOffload offload{.folder = folder_.path(), .key = "key", .make_copies = [&](Device& d) {
                                 auto made = std::make_unique<LazyCopies>(d);
                                 weight_copies = made.get();
                                 return made;
                               }};
    const auto buffer =
        make_param_and_grad_buffer(model.unit_params(), c.dtype, device, {world, *self}, layout, offload);
    buffer->visit_weights([](const Param& param, i64 first, Tensor values) { initialize(param, 7, first, values); });
    buffer->publish();
    const OptimizerConfig config = optimizer_of(c);
    ParamAndGradBuffer* const buffers[]{buffer.get()};
    auto copies =
        weight_copies ? std::make_unique<LazyCopies>(device, *weight_copies) : std::make_unique<LazyCopies>(device);
    const LazyCopies& update_copies = *copies;
    Optimizer optimizer(buffers, config, {}, {{GridKind::Dense, &world}},
                        std::make_unique<StateStore>(device, state_store_options(config, device, false)),
                        std::move(copies));
    Bytes trained;
    ToyTraining training{
        .model = model, .buffer = *buffer, .rank = world.rank(), .microbatches = 2, .is_tied = c.is_tied};
    training.on_forward = [&](const Param& param) { append(param.value, trained); };
    for (int step = 0; step < kSteps; ++step) {
      training.run_step(step);
      optimizer.step(1e-2, 0.1);
      EXPECT_EQ(update_copies.num_pending(), 0U);
      buffer->publish();
    }
    expect_copies(c, weight_copies, update_copies);
    buffer->visit_weights([&](const Param&, i64, const Tensor& values) { append(values, trained); });
    optimizer.visit_stored_state([&](std::string_view, const Param&, i64, const auto& values) {
      CpuDevice host;
      Tensor copy = Tensor::empty({values.numel()}, values.dtype(), host, MemoryClass::Other);
      values.read(copy);
      append(copy, trained);
    });
    return trained;
  }
  static void expect_copies(const Case& c, const LazyCopies* weight_copies, const LazyCopies& update_copies) {
    if (c.weights == OffloadTier::Device) return;
    EXPECT_GE(weight_copies->begun(), 2U * 2 * kSteps * 4)
        << "each of four units, in both directions in two microbatches";
    if (c.weights == OffloadTier::File || c.states != OffloadTier::Device) return;
    EXPECT_GE(update_copies.begun(), 2U * kSteps * 4) << "each of four units in both directions";
  }

  const test::DiskFolder folder_;
};

TEST_F(OffloadedWeightsTest, TransfersOverlapComputeAndResultsAreBitwiseIdentical) {
  using enum OffloadTier;
  const Case cases[]{
      {.dtype = DType::F32},
      {},
      {.overlap = false},
      {.quantized_weights = true},
      {.is_tied = true},
      {.has_remainders = true},
      {.kind = OptimizerKind::Muon},
  };
  for (Case c : cases) {
    for (const int ranks : {1, 2}) {
      run_local_ranks(ranks, [&, resident = c](Communicator& world, int) {
        const Bytes expected = train(resident, world);
        for (const OffloadTier weights : {Host, File}) {
          for (const OffloadTier states : {Device, Host, File}) {
            SCOPED_TRACE(str(world.size(), " ranks, weights ", enum_name(weights), ", states ", enum_name(states)));
            Case offloaded = resident;
            offloaded.weights = weights;
            offloaded.states = states;
            EXPECT_TRUE(train(offloaded, world) == expected);
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace mcpp

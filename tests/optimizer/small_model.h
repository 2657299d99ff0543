// Small model whose parameters are split into many segments, its optimizer, and random gradients.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "optimizer/optimizer.h"
#include "parallel/dp/zero.h"
#include "tensor/ops/low_precision/quantize.h"
#include "tensor/ops/ops.h"

namespace mcpp::test {

/// Appends the fp32 values to `all`.
inline void append(const StoredArray& values, std::vector<float>& all) {
  CpuDevice host;
  Tensor copy = Tensor::empty({values.numel()}, values.dtype(), host, MemoryClass::Other);
  values.read(copy);
  all.insert(all.end(), copy.data<float>(), copy.data<float>() + copy.numel());
}

class SmallModel {
 public:
  using Bytes = std::vector<std::byte>;

  SmallModel(DType dtype, const OptimizerConfig& config)
      : SmallModel(dtype, config, [&](Device& device) {
          return std::make_unique<StateStore>(device, state_store_options(config, device, true));
        }) {}
  SmallModel(DType dtype, const OptimizerConfig& config,
             const std::function<std::unique_ptr<StateStore>(Device&)>& make_states,
             const std::function<std::unique_ptr<AsyncCopyEngine>(Device&)>& make_copies = make_async_copy_engine) {
    std::vector<UnitParam> list;
    const auto add = [&](const std::string& name, Shape shape, int unit) {
      Param& param = params_.emplace_back(name, shape, Init::Normal);
      if (shape.size() == 2 && unit > 0) param.matrices = {param.box};
      list.push_back({&param, unit});
    };
    add("embedding.weight", {61, 30}, 0);
    add("norm.weight", {30}, 1);
    add("linear.weight", {70, 30}, 1);
    add("linear.bias", {70}, 1);
    add("out.weight", {30, 70}, 2);
    buffer_ = make_param_and_grad_buffer(list, dtype, device_, {*self_, *self_}, {.bucket_size = 2000});
    buffer_->visit_weights([&](const Param&, i64, Tensor values) { draw(values, 1); });
    ParamAndGradBuffer* const buffers[]{buffer_.get()};
    optimizer_.emplace(buffers, config, NormScope{}, MatrixGroups{}, make_states(device_), make_copies(device_));
  }

  StepResult step(double size = 1) {
    buffer_->clear_grads();
    for (Param& param : params_) param.add_grad([&](Tensor& sum, float) { draw(sum, size); });
    buffer_->finish();
    return optimizer_->step(1e-2, 0.1);
  }

  /// Makes the next gradients those that `other` would draw.
  void draw_as(const SmallModel& other) { random_ = other.random_, normal_ = other.normal_; }
  void copy_weights(const SmallModel& other) {
    std::vector<Tensor> from;
    other.buffer_->visit_weights([&](const Param&, i64, const Tensor& values) { from.push_back(values); });
    auto next = from.begin();
    buffer_->visit_weights([&](const Param&, i64, Tensor values) { ops::copy(*next++, values); });
  }

  /// Returns weights and states by name.
  std::map<std::string, Bytes> state_bytes() const {
    std::map<std::string, Bytes> all;
    const auto add = [&](const std::string& name, const Tensor& values) {
      const auto* data = static_cast<const std::byte*>(values.raw());
      all[name].insert(all[name].end(), data, data + values.bytes());
    };
    buffer_->visit_weights([&](const Param& param, i64, const Tensor& values) { add(param.name, values); });
    optimizer_->visit_stored_state([&](std::string_view state, const Param& param, i64, const auto& values) {
      CpuDevice host;
      Tensor copy = Tensor::empty({values.numel()}, values.dtype(), host, MemoryClass::Other);
      values.read(copy);
      add(str(state, " ", param.name), copy);
    });
    return all;
  }
  /// Returns the states of an fp32 or low-precision model by name.
  std::map<std::string, std::vector<float>> states() const {
    std::map<std::string, std::vector<float>> all;
    optimizer_->visit_stored_state([&](std::string_view state, const Param& param, i64, const auto& values) {
      append(values, all[str(state, " ", param.name)]);
    });
    return all;
  }
  std::vector<double> weights() const {
    std::vector<double> all;
    buffer_->visit_weights([&](const Param&, i64, const Tensor& values) {
      on_float(values.dtype(), [&]<class T>() {
        for (i64 i = 0; i < values.numel(); ++i) all.push_back(to_double(values.data<T>()[i]));
      });
    });
    return all;
  }

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  CpuDevice& device() { return device_; }

 private:
  void draw(Tensor& values, double size) {
    on_float(values.dtype(), [&]<class T>() {
      for (i64 i = 0; i < values.numel(); ++i) values.data<T>()[i] = from_double<T>(size * normal_(random_));
    });
  }

  CpuDevice device_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  std::list<Param> params_;
  std::unique_ptr<ParamAndGradBuffer> buffer_;
  std::optional<Optimizer> optimizer_;
  std::mt19937 random_{7};
  std::normal_distribution<double> normal_;
};

/// Copies states as a checkpoint does, in chunks of different sizes.
inline void load_states(const SmallModel& from, SmallModel& to) {
  const std::map<std::string, std::vector<float>> states = from.states();
  to.optimizer().visit_stored_state([&](std::string_view state, const Param& param, i64 first, const auto& values) {
    const std::vector<float>& all = states.at(str(state, " ", param.name));
    CpuDevice host;
    for (i64 begin = 0, count = 0; begin < values.numel(); begin += count) {
      count = std::min(kQuantizedBlock * (1 + begin / kQuantizedBlock % 3), values.numel() - begin);
      Tensor part = Tensor::empty({count}, values.dtype(), host, MemoryClass::Other);
      std::copy_n(all.begin() + first + begin, count, part.data<float>());
      values.part(begin, count).write(part);
    }
  });
  to.optimizer().set_steps(from.optimizer().steps());
  to.copy_weights(from);
}

/// Checks that snapshots of stored states, taken after a step, keep their values while a thread reads them and more
/// steps run. Returns the number of parameter states.
inline std::size_t expect_snapshots_stay(SmallModel& model) {
  model.step();
  const auto expected = model.states();
  std::map<std::string, std::vector<StoredArray>> snapshots;
  model.optimizer().visit_stored_state([&](std::string_view state, const Param& param, i64, const auto& values) {
    const i64 half = values.numel() / 2;  // halves, as ranks share the work
    for (const auto& part : {values.part(0, half), values.part(half, values.numel() - half)})
      snapshots[str(state, " ", param.name)].push_back(part.snapshot());
  });
  std::map<std::string, std::vector<float>> seen;
  std::thread reader([&] {
    for (const auto& [name, parts] : snapshots) {
      for (const auto& part : parts) append(part, seen[name]);
    }
  });
  for (int i = 0; i < 3; ++i) model.step();
  reader.join();
  EXPECT_EQ(seen, expected);
  return snapshots.size();
}

}  // namespace mcpp::test

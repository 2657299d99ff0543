#include "megatron_cpp/bench/bench_async_save.h"

#include <chrono>

#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/resume/checkpoint_saver.h"
#include "megatron_cpp/setup/model_provider.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Config saving_in(const Path& folder, Config config) {
  config.checkpoint = {};
  config.checkpoint.save = folder.string();
  config.checkpoint.save_interval = 1;
  config.checkpoint.keep_latest_k = 1;
  config.checkpoint.async_save = true;
  return config;
}

/// Training steps with asynchronous saves as in Trainer, except that each step's outcome is waited for.
class AsyncSaveBench {
 public:
  AsyncSaveBench(const Config& config, TrainingState& state, Session& session, const Path& folder)
      : config_(saving_in(folder, config)),
        state_(state),
        session_(session),
        batches_(static_cast<std::size_t>(microbatches_per_step(config, session.parallel.world.size())),
                 random_batch(model_provider(config, session), config.training.micro_batch_size)),
        saver_(config_, state, {}, /*sources=*/{}, session, quiet_, files_) {}

  AsyncSaveTimes run() {
    constexpr int kSteps = 2;
    AsyncSaveTimes times;
    for (int i = 0; i < kSteps; ++i) step();  // memory for the saves is prepared concurrently
    for (int i = 0; i < kSteps; ++i) times.step += max_over_ranks(seconds([&] { step(); })) / kSteps;
    times.first_stall = save(2).stall;
    const Save later = save(3);
    times.stall = later.stall;
    times.step_with_save = later.step;
    times.total = later.total;
    return times;
  }

 private:
  struct Save {
    double stall, step, total;
  };

  /// Starts a save and trains until it has finished.
  Save save(i64 iteration) {
    stall_ = 0;
    double in_steps = 0, steps = 0;
    const double total = seconds([&] {
      stall_ += seconds([&] { saver_.save({.iteration = iteration}, {}); });
      for (; saver_.is_in_flight(); ++steps) in_steps += seconds([&] { step(); });
    });
    return {.stall = max_over_ranks(stall_), .step = max_over_ranks(in_steps / steps), .total = max_over_ranks(total)};
  }

  void step() {
    state_.backward(batches_);
    stall_ += seconds([&] { saver_.wait_for_copy(); });
    state_.update({.lr = config_.optimizer.lr, .weight_decay = config_.optimizer.weight_decay});
    state_.outcome();
    stall_ += seconds([&] { saver_.poll(); });
  }

  double max_over_ranks(double value) {
    return reduce_scalar(value, ReduceOp::Max, session_.parallel.world, *session_.device);
  }

  const Config config_;
  TrainingState& state_;
  Session& session_;
  const Log quiet_{session_.parallel.world.rank() + 1};  // never rank 0, whose log lines would mix with the results
  const FileSystem files_;
  const std::vector<MicroBatch> batches_;
  CheckpointSaver saver_;
  double stall_ = 0;
};

}  // namespace

AsyncSaveTimes bench_async_save(const Config& config, TrainingState& state, Session& session, const Path& folder) {
  return AsyncSaveBench(config, state, session, folder).run();
}

}  // namespace mcpp

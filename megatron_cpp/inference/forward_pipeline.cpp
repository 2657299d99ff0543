#include "megatron_cpp/inference/forward_pipeline.h"

#include "parallel/pp/engine.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp {
namespace {

class ForwardStage final : public PipelineStage {
 public:
  ForwardStage(GPTModel& model, const ForwardTask& task) : model_(model), task_(task) {}

  Tensor forward(int microbatch, const Tensor& x) override {
    MicrobatchContext context;
    context.training = false;
    context.saves_for_backward = false;
    if (task_.prepare) task_.prepare(microbatch, context);
    const Tensor input = model_.stage().has_embedding ? task_.tokens(microbatch) : x;
    if (!model_.stage().has_output) return model_.forward(input, context);
    task_.output(microbatch, input, context);
    return {};
  }
  Tensor backward(int, const Tensor&, bool) override { no_backward(); }
  Tensor backward_input(int, const Tensor&) override { no_backward(); }
  void backward_weight(int, bool) override { no_backward(); }
  void reduce_gradients() override { no_backward(); }
  Tensor empty_activation() override {
    const ModelContext& context = model_.context();
    return Tensor::empty({task_.seq, task_.batch, context.config.hidden_size}, context.dtype, context.device);
  }

 private:
  [[noreturn]] static void no_backward() { fail(ExitCode::Internal, "a forward-only schedule has no backward pass"); }

  GPTModel& model_;
  const ForwardTask& task_;
};

}  // namespace

void run_forward(GPTModel& stage, const ParallelState& parallel, const ForwardTask& task) {
  const Schedule schedule = lower(
      forward_schedule(make_schedule(ScheduleKind::GPipe, parallel.topology.pp(), task.microbatches, /*chunks=*/1)));
  ForwardStage forward_stage(stage, task);
  PipelineStage* const chunks[]{&forward_stage};
  // All messages go in one direction, so that a device that loads a kernel late never waits for a reply.
  run_schedule(schedule, *parallel.pp, *parallel.pp_backward, chunks);
}

}  // namespace mcpp

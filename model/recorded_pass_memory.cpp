#include "model/recorded_pass_memory.h"

#include "model/meta_model.h"
#include "tensor/memory_arena.h"

namespace mcpp {

i64 recorded_pass_bytes(const ModelConfig& config, const ActivationSetup& setup) {
  MetaRun run(config, setup);
  ModelContext context = run.context();
  context.graph_warmup_steps = 1;
  GPTModel model(context);
  model.visit([&](Param& param, int) { run.allocate(param); });
  for (const auto& [layer, router] : model.routers()) router->allocate_state();
  const Tensor tokens = run.make_targets(), targets = run.make_targets();
  const std::vector<FutureTokens> future(static_cast<std::size_t>(config.mtp_num_layers),
                                         {.tokens = tokens, .targets = targets});
  const auto pass = [&] {
    MicrobatchContext microbatch = run.make_microbatch();
    microbatch.is_last = false;
    const GPTModel::Losses losses = model.loss(tokens, {.next = targets, .future = future}, 1, microbatch);
    model.backward({}, microbatch);
  };
  const auto evaluation = [&] {
    MicrobatchContext microbatch = run.make_microbatch();
    microbatch.training = microbatch.saves_for_backward = false;
    model.loss(tokens, {.next = targets, .future = future}, 1, microbatch);
  };
  pass();  // allocates what later passes keep
  MemoryArena arena(run.device());
  const MemoryArena::Scope scope(arena, MemoryArena::Growth::Allowed);
  pass();
  evaluation();
  return arena.bytes();
}

}  // namespace mcpp

#include "model/pass_pair_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "model/gpt_model.h"
#include "model/meta_model.h"
#include "parallel/pp/pass_interleaver.h"

namespace mcpp {
namespace {

ModelContext context_of(MetaRun& run, const RankMemorySpec& share) {
  ModelContext context = run.context();
  const auto final_norm = std::ranges::find_if(share.stages, &StageContents::has_final_norm);
  context.final_norm_rank = share.schedule.rank_of(static_cast<int>(final_norm - share.stages.begin()));
  return context;
}

std::vector<StageContents> chunks_of(const RankMemorySpec& share) {
  std::vector<StageContents> stages;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk) stages.push_back(share.contents(chunk));
  return stages;
}

/// Chunks of a rank on the meta device.
class MetaChunks {
 public:
  MetaChunks(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share)
      : run_(config, setup),
        chunks_(make_chunks(context_of(run_, share), chunks_of(share))),
        tokens_(run_.make_targets()),
        targets_(run_.make_targets()),
        future_(static_cast<std::size_t>(config.mtp_num_layers), {run_.make_targets(), run_.make_targets()}) {
    for (const auto& chunk : chunks_) {
      chunk->visit([&](Param& param, int) { run_.allocate(param); });
      for (const auto& [layer, router] : chunk->routers()) router->allocate_state();
    }
  }

  MetaRun& run() { return run_; }
  /// Returns the input of a forward pass.
  Tensor make_input(int chunk) {
    const StageContents& stage = stage_of(chunk);
    return stage.has_embedding ? tokens_ : run_.make_input(stage.receives_predictions() ? num_predictions() : 1);
  }
  /// Returns the gradient with which a backward pass starts; undefined if the chunk computes losses.
  Tensor make_gradient(int chunk) {
    const StageContents& stage = stage_of(chunk);
    return stage.has_output ? Tensor() : run_.make_input(stage.sends_predictions() ? num_predictions() : 1);
  }
  /// Returns the result for the next stage; undefined if the chunk computes losses.
  Tensor forward(int chunk, const Tensor& input, MicrobatchContext& microbatch) {
    GPTModel& model = model_of(chunk);
    if (!model.stage().has_output) return model.forward(input, microbatch, future_);
    model.loss(input, {targets_, future_}, 1, microbatch);
    return {};
  }
  Tensor backward(int chunk, const Tensor& gradient, MicrobatchContext& microbatch) {
    return model_of(chunk).backward(gradient, microbatch);
  }

 private:
  GPTModel& model_of(int chunk) { return *chunks_[static_cast<std::size_t>(chunk)]; }
  const StageContents& stage_of(int chunk) { return model_of(chunk).stage(); }
  i64 num_predictions() const { return static_cast<i64>(1 + future_.size()); }

  MetaRun run_;
  std::vector<std::unique_ptr<GPTModel>> chunks_;
  Tensor tokens_, targets_;  // read by every pass, and not counted
  std::vector<FutureTokens> future_;
};

}  // namespace

i64 pass_pair_bytes(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share, int forward,
                    int backward, bool delays_wgrad) {
  MetaChunks chunks(config, setup, share);
  PassInterleaver interleaver;
  const auto make_microbatch = [&] {
    MicrobatchContext microbatch = chunks.run().make_microbatch();
    microbatch.is_last = false;
    microbatch.yield = [&] { interleaver.yield(); };
    return microbatch;
  };
  {
    MicrobatchContext first = make_microbatch();  // allocates tensors that persist, such as rotary tables
    chunks.forward(forward, chunks.make_input(forward), first);
  }
  MicrobatchContext older = make_microbatch(), newer = make_microbatch();
  older.delay_wgrad_compute = delays_wgrad;
  chunks.forward(backward, chunks.make_input(backward), older);
  const MemoryUse& live = chunks.run().device().memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)];
  const i64 before = live.bytes;
  chunks.run().device().reset_peak();
  const Tensor input = chunks.make_input(forward), gradient = chunks.make_gradient(backward);
  Tensor output, input_gradient;
  interleaver.run([&] { output = chunks.forward(forward, input, newer); },
                  [&] { input_gradient = chunks.backward(backward, gradient, older); });
  return live.peak - before;
}

}  // namespace mcpp

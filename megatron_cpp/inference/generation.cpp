#include "megatron_cpp/inference/generation.h"

#include <span>

#include "megatron_cpp/inference/forward_pipeline.h"
#include "model/layers/kv_cache.h"
#include "tensor/integers.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// The row `logits`, cut over the tensor-parallel ranks, whole, in fp32.
Tensor whole_row(const Tensor& logits, Communicator& tp) {
  Tensor part = Tensor::empty({logits.dim(1)}, DType::F32, logits.device());
  ops::copy(logits.slice(logits.dim(0) - 1, logits.dim(0)).view({-1}), part);
  Tensor row = Tensor::empty({part.numel() * tp.size()}, DType::F32, logits.device());
  tp.all_gather(part, row).wait();
  return row;
}

/// The logits after the last of `tokens`, which stand at positions first_position, first_position + 1, ..., on every
/// rank.
std::vector<float> next_logits(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                               i64 first_position, KvCache& cache) {
  const ModelContext& context = stage.context();
  const auto count = static_cast<i64>(tokens.size());
  Tensor row = Tensor::empty({context.config.padded_vocab_size()}, DType::F32, context.device);
  const auto input = [&](int) { return integers(tokens, {count, 1}, context.device); };
  const auto prepare = [&](Pass& pass) {
    pass.positions.first = first_position;
    pass.kv_cache = &cache;
  };
  run_forward(
      stage, parallel,
      {.seq = count, .batch = 1, .tokens = input, .prepare = prepare, .output = [&](int, const Tensor& x, Pass& pass) {
         row = whole_row(stage.logits(x, pass), *parallel.tp);
       }});
  parallel.pp->broadcast(row, parallel.pp->size() - 1).wait();
  std::vector<float> values = read_values<float>(row);
  values.resize(static_cast<std::size_t>(context.config.vocab_size));  // the rest pads the vocabulary
  return values;
}

}  // namespace

void generate(GPTModel& stage, ParallelState& parallel, std::vector<i32> prompt, const SamplingOptions& sampling,
              const GenerationLimits& limits, const std::function<bool(i32)>& deliver) {
  MCPP_CHECK(!prompt.empty(), "generation starts from at least one token");
  const i64 longest = stage.context().config.max_positions();
  const auto keep_last = [&](i64 count) {
    if (static_cast<i64>(prompt.size()) > count) prompt.erase(prompt.begin(), prompt.end() - count);
  };
  keep_last(longest);
  KvCache cache(stage.context(), 1, longest);
  i64 cached = 0;
  for (i64 n = 0; n < limits.max_new_tokens; ++n) {
    if (static_cast<i64>(prompt.size()) > longest) {
      keep_last((longest + 1) / 2);
      cached = 0;
    }
    const std::vector<float> logits =
        next_logits(stage, parallel, std::span(prompt).subspan(static_cast<std::size_t>(cached)), cached, cache);
    cached = static_cast<i64>(prompt.size());
    const i32 token = sample_token(logits, sampling, static_cast<u64>(n));
    if (token == limits.stop_token || !deliver(token)) return;
    prompt.push_back(token);
  }
}

}  // namespace mcpp

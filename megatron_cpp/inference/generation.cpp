#include "megatron_cpp/inference/generation.h"

#include <span>

#include "model/layers/kv_cache.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// The logits after the last of `tokens`, which stand at positions first_position, first_position + 1, ...
std::vector<float> next_logits(GPTModel& model, std::span<const i32> tokens, i64 first_position, KvCache& cache) {
  const ModelContext& context = model.context();
  Tensor input = Tensor::empty({static_cast<i64>(tokens.size()), 1}, DType::I32, context.device);
  write_values(tokens, input);
  Pass pass;
  pass.training = false;
  pass.keeps_stash = false;
  pass.positions.first = first_position;
  pass.kv_cache = &cache;
  const Tensor logits = model.logits(input, pass);
  Tensor last = Tensor::empty({logits.dim(1)}, DType::F32, context.device);
  ops::copy(logits.slice(logits.dim(0) - 1, logits.dim(0)).view({-1}), last);
  std::vector<float> values = read_values<float>(last);
  values.resize(static_cast<std::size_t>(context.config.vocab_size));  // the rest pads the vocabulary
  return values;
}

}  // namespace

void generate(GPTModel& model, std::vector<i32> prompt, const SamplingOptions& sampling, const GenerationLimits& limits,
              const std::function<bool(i32)>& deliver) {
  MCPP_CHECK(!prompt.empty(), "generation starts from at least one token");
  const i64 longest = model.context().config.max_positions();
  const auto keep_last = [&](i64 count) {
    if (static_cast<i64>(prompt.size()) > count) prompt.erase(prompt.begin(), prompt.end() - count);
  };
  keep_last(longest);
  KvCache cache(model.context(), 1, longest);
  i64 cached = 0;
  for (i64 n = 0; n < limits.max_new_tokens; ++n) {
    if (static_cast<i64>(prompt.size()) > longest) {
      keep_last((longest + 1) / 2);
      cached = 0;
    }
    const std::vector<float> logits =
        next_logits(model, std::span(prompt).subspan(static_cast<std::size_t>(cached)), cached, cache);
    cached = static_cast<i64>(prompt.size());
    const i32 token = sample_token(logits, sampling, static_cast<u64>(n));
    if (token == limits.stop_token || !deliver(token)) return;
    prompt.push_back(token);
  }
}

}  // namespace mcpp

#include "megatron_cpp/train/text_sample.h"

#include <algorithm>

#include "megatron_cpp/inference/sampling.h"
#include "parallel/reduce_scalar.h"
#include "tensor/transfer.h"

namespace mcpp {

TextSampler::TextSampler(StoredRef<Config> config, const SpecialTokens& special_tokens, Session& session)
    : config_(config), session_(session) {
  if (config_.logging.sample_prompt.empty()) return;
  tokenizer_.emplace(config_.data.tokenizer_model);
  prompt_ = tokenizer_->encode(config_.logging.sample_prompt);
  special_tokens.add_bos(prompt_);
  stop_tokens_ = special_tokens.stop_tokens(*tokenizer_);
  const auto tokens = static_cast<i64>(prompt_.size());
  check_input(tokens > 0 && tokens < config_.model.seq_length, "logging.sample_prompt: has ", tokens,
              " tokens; there must be at least one, and fewer than model.seq_length ", config_.model.seq_length);
}

std::optional<std::string> TextSampler::next(TrainingState& state, const std::function<int()>& signal) const {
  CpuDevice host;
  std::vector<i32> ids = prompt_;
  const i64 last = std::min(config_.model.seq_length, static_cast<i64>(ids.size()) + config_.logging.sample_tokens);
  while (static_cast<i64>(ids.size()) < last) {
    if (reduce_scalar(signal(), ReduceOp::Max, session_.parallel.world, host) != 0) return std::nullopt;
    const std::vector<float> logits = state.next_logits(sample_of(ids), static_cast<i64>(ids.size()) - 1);
    const i32 id = sample_token(logits, {.temperature = 0.8, .top_k = 40}, static_cast<u64>(ids.size()));
    if (std::ranges::count(stop_tokens_, id) > 0 || id >= tokenizer_->vocab_size()) break;
    ids.push_back(id);
  }
  return tokenizer_->decode(std::span(ids).subspan(prompt_.size()));
}

/// Pads `ids` to a sample. The logits of the ids do not depend on the padding.
MicroBatch TextSampler::sample_of(std::span<const i32> ids) const {
  const i64 length = config_.model.seq_length;
  std::vector<i32> padded(static_cast<std::size_t>(length), 0);
  std::ranges::copy(ids, padded.begin());
  MicroBatch batch{.tokens = Tensor::empty({length, 1}, DType::I32, *session_.device),
                   .targets = Tensor::empty({length, 1}, DType::I32, *session_.device),
                   .samples = {0}};
  write_values(padded, batch.tokens);
  write_values(std::vector<i32>(padded.size(), -1), batch.targets);
  return shard_microbatch(batch, config_.model, session_.parallel.context_parallel(config_.parallel.cp_comm_type));
}

}  // namespace mcpp

#include "megatron_cpp/inference/generation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "megatron_cpp/inference/window_scorer.h"
#include "model/layers/kv_cache.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the tokens to choose from, most likely first: at most top_k of them.
std::vector<i32> candidates(std::span<const float> logits, i64 top_k) {
  std::vector<i32> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const i64 count = top_k > 0 ? std::min(top_k, static_cast<i64>(logits.size())) : static_cast<i64>(logits.size());
  const auto likelier = [&](i32 a, i32 b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(), likelier);
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

}  // namespace

i32 sample_token(std::span<const float> logits, const SamplingOptions& options, u64 draw) {
  if (options.temperature == 0) return candidates(logits, 1).front();
  const std::vector<i32> tokens = candidates(logits, options.top_k);
  std::vector<double> weights;
  for (i32 token : tokens) weights.push_back(std::exp((logits[token] - logits[tokens.front()]) / options.temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);

  double kept_weight = 0;
  std::size_t count = 0;
  while (count < weights.size() && kept_weight < options.top_p * total) kept_weight += weights[count++];

  const Philox4 bits = philox4x32(philox_key(static_cast<u64>(options.seed), "sampling"),
                                  {static_cast<u32>(draw), static_cast<u32>(draw >> 32), 0, 0});
  double remaining = uniform_open(bits[0]) * kept_weight;
  for (std::size_t i = 0; i < count; ++i) {
    remaining -= weights[i];
    if (remaining <= 0) return tokens[i];
  }
  return tokens[count - 1];
}

namespace {

/// Gathers logits [b, padded vocabulary / tp], sharded over tensor-parallel ranks, as fp32 [tp, b, padded vocabulary /
/// tp].
Tensor gather_logits(const Tensor& logits, Communicator& tp) {
  Tensor part = Tensor::empty(logits.shape(), DType::F32, logits.device());
  ops::copy(logits, part);
  Tensor all = Tensor::empty({tp.size(), part.dim(0), part.dim(1)}, DType::F32, logits.device());
  tp.all_gather(part, all).wait();
  return all;
}

/// Batch of texts that are continued at one common position.
class Generation {
 public:
  Generation(GPTModel& stage, ParallelState& parallel, std::vector<TextStart> texts, const GenerationLimits& limits)
      : stage_(stage),
        parallel_(parallel),
        texts_(std::move(texts)),
        limits_(limits),
        new_tokens_(texts_.size(), 0),
        longest_(stage.context().config.max_positions()),
        cache_(stage.context(), static_cast<i64>(texts_.size()), longest_) {
    for (TextStart& text : texts_) {
      MCPP_CHECK(!text.prompt.empty(), "generation needs a prompt of at least one token");
      drop_front(text.prompt, static_cast<i64>(text.prompt.size()) - longest_);
    }
    known_ = static_cast<i64>(std::ranges::min(texts_, {}, length).prompt.size());
  }

  void run(const TokenListener& deliver) {
    for (active_texts_ = texts_.size(); active_texts_ > 0; ++known_) {
      if (known_ > longest_) keep_later_half();
      const std::vector<float> logits = next_logits();
      read_ = known_;
      for (std::size_t i = 0; i < texts_.size(); ++i) {
        if (static_cast<i64>(texts_[i].prompt.size()) == known_) extend(i, row(logits, i), deliver);
      }
    }
  }

 private:
  static std::size_t length(const TextStart& text) { return text.prompt.size(); }
  static void drop_front(std::vector<i32>& tokens, i64 count) {
    if (count > 0) tokens.erase(tokens.begin(), tokens.begin() + count);
  }

  void keep_later_half() {
    const i64 dropped = known_ - (longest_ + 1) / 2;
    for (TextStart& text : texts_) drop_front(text.prompt, dropped);
    known_ -= dropped;
    read_ = 0;
  }

  /// Appends a token to a text that has not ended, or padding to one that has.
  void extend(std::size_t i, std::span<const float> logits, const TokenListener& deliver) {
    const bool can_continue = new_tokens_[i] < limits_.max_new_tokens;
    const i32 token = can_continue ? sample_token(logits, texts_[i].sampling, static_cast<u64>(new_tokens_[i]++)) : 0;
    texts_[i].prompt.push_back(token);
    if (!can_continue) return;
    const bool stops = std::ranges::count(limits_.stop_tokens, token) > 0;
    if (!stops) deliver(i, token);
    if (stops) new_tokens_[i] = limits_.max_new_tokens;
    if (new_tokens_[i] < limits_.max_new_tokens) return;
    deliver(i, -1);
    --active_texts_;
  }

  /// Returns positions read_ .. known_ of all texts, int32 [positions, texts].
  Tensor unread() const {
    std::vector<i32> tokens;
    for (i64 at = read_; at < known_; ++at) {
      for (const TextStart& text : texts_) tokens.push_back(text.prompt[static_cast<std::size_t>(at)]);
    }
    return integers(tokens, {known_ - read_, static_cast<i64>(texts_.size())}, stage_.context().device);
  }

  /// Returns the positions at which the documents of the tokens of unread() begin, in the same shape.
  Tensor unread_starts() const {
    const auto batch = static_cast<i64>(texts_.size());
    std::vector<i32> starts(static_cast<std::size_t>((known_ - read_) * batch));
    for (i64 b = 0; b < batch; ++b) {
      const std::vector<i32>& tokens = texts_[static_cast<std::size_t>(b)].prompt;
      i32 start = 0;
      for (i64 at = 0; at < known_; ++at) {
        if (at > 0 && tokens[static_cast<std::size_t>(at - 1)] == limits_.documents.eod) start = static_cast<i32>(at);
        if (at >= read_) starts[static_cast<std::size_t>((at - read_) * batch + b)] = start;
      }
    }
    return integers(starts, {known_ - read_, batch}, stage_.context().device);
  }

  /// Returns the logits after the last known token of each text, on every rank: [tp, texts, padded vocabulary / tp].
  std::vector<float> next_logits() {
    const ModelContext& model = stage_.context();
    const auto batch = static_cast<i64>(texts_.size());
    const int tp = parallel_.tp->size();
    Tensor all = Tensor::empty({tp, batch, model.config.padded_vocab_size() / tp}, DType::F32, model.device);
    const auto prepare = [&](int, MicrobatchContext& context) {
      context.positions.first = read_;
      context.kv_cache = &cache_;
      if (!limits_.documents.has_starts()) return;
      const Tensor starts = unread_starts();
      if (limits_.documents.resets_attention) context.attention_starts = starts;
      if (limits_.documents.resets_positions) context.position_starts = starts;
    };
    const auto output = [&](int, const Tensor& x, MicrobatchContext& context) {
      const Tensor logits = stage_.logits(x, context);
      all = gather_logits(logits.slice(logits.dim(0) - batch, logits.dim(0)), *parallel_.tp);
    };
    run_forward(stage_, parallel_,
                {.seq = known_ - read_,
                 .batch = batch,
                 .tokens = [&](int) { return unread(); },
                 .prepare = prepare,
                 .output = output});
    parallel_.pp->broadcast(all, parallel_.pp->size() - 1).wait();
    parallel_.dp->broadcast(all, 0).wait();  // ranks on different processors could otherwise choose different tokens
    return read_values<float>(all);
  }

  /// Returns the logits of one text without the padding of the vocabulary.
  std::vector<float> row(std::span<const float> logits, std::size_t text) const {
    const auto parts = static_cast<std::size_t>(parallel_.tp->size()), width = logits.size() / parts / texts_.size();
    std::vector<float> values;
    for (std::size_t part = 0; part < parts; ++part) {
      const std::span<const float> from = logits.subspan((part * texts_.size() + text) * width, width);
      values.insert(values.end(), from.begin(), from.end());
    }
    values.resize(static_cast<std::size_t>(stage_.context().config.vocab_size));
    return values;
  }

  GPTModel& stage_;
  ParallelState& parallel_;
  std::vector<TextStart> texts_;  // each with all of its tokens that fit in the context
  GenerationLimits limits_;
  std::vector<i64> new_tokens_;  // by text
  i64 longest_;
  KvCache cache_;
  i64 known_ = 0;                 // number of tokens that every text has
  i64 read_ = 0;                  // number of these that the cache has
  std::size_t active_texts_ = 0;  // number of texts that have not ended
};

}  // namespace

void generate(GPTModel& stage, ParallelState& parallel, std::vector<TextStart> texts, const GenerationLimits& limits,
              const TokenListener& deliver) {
  if (!texts.empty()) Generation(stage, parallel, std::move(texts), limits).run(deliver);
}

void TextPrinter::begin(std::span<const Prompt> prompts, const Tokenizer& tokenizer) {
  texts_.clear();
  next_ = 0;
  for (const Prompt& prompt : prompts) {
    texts_.push_back({.prompt = std::string(prompt.text),
                      .decoder = StreamDecoder(tokenizer),
                      .vocab_size = tokenizer.vocab_size(),
                      .generated = {}});
    for (const i32 token : prompt.tokens)
      texts_.back().decoder.add(token);  // so that the generated text joins correctly
  }
  show();
}

void TextPrinter::add(std::size_t text, i32 token) {
  Text& to = texts_.at(text);
  if (token < to.vocab_size) to.generated += token >= 0 ? to.decoder.add(token) : to.decoder.finish();
  to.has_ended = token < 0;
  show();
}

void TextPrinter::show() {
  for (; next_ < texts_.size(); ++next_) {
    Text& text = texts_[next_];
    if (form_ == Form::Stream) show_stream(text);
    if (!text.has_ended) return;
    if (form_ == Form::JsonLines) show_json(text);
  }
}

void TextPrinter::show_stream(Text& text) {
  if (!text.has_begun) sink_((is_first_ ? "" : "----\n") + text.prompt);
  text.has_begun = true, is_first_ = false;
  if (text.has_ended) text.generated += "\n";
  if (!text.generated.empty()) sink_(std::exchange(text.generated, {}));
}

void TextPrinter::show_json(const Text& text) const {
  const nlohmann::ordered_json line{{"prompt", text.prompt}, {"text", text.generated}};
  sink_(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace mcpp

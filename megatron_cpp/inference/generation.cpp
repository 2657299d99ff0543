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

/// Tokens in the order of their logits, most likely first. Sorts only as many as are read, since few of a large
/// vocabulary are.
class TokensByLogit {
 public:
  explicit TokensByLogit(std::span<const float> logits) : is_less_likely_{logits}, heap_(logits.size()) {
    std::iota(heap_.begin(), heap_.end(), 0);
    std::ranges::make_heap(heap_, is_less_likely_);
  }
  i32 operator[](std::size_t rank) {
    while (sorted_.size() <= rank) {
      std::ranges::pop_heap(heap_, is_less_likely_);
      sorted_.push_back(heap_.back());
      heap_.pop_back();
    }
    return sorted_[rank];
  }

 private:
  struct IsLessLikely {
    std::span<const float> logits;
    bool operator()(i32 a, i32 b) const { return logits[a] != logits[b] ? logits[a] < logits[b] : a > b; }
  };

  IsLessLikely is_less_likely_;
  std::vector<i32> heap_, sorted_;
};

}  // namespace

i32 sample_token(std::span<const float> logits, const SamplingOptions& options, u64 draw) {
  const auto most_likely = static_cast<i32>(std::ranges::max_element(logits) - logits.begin());
  if (options.temperature == 0) return most_likely;
  const std::size_t count =
      options.top_k > 0 ? std::min(static_cast<std::size_t>(options.top_k), logits.size()) : logits.size();
  const auto weight = [&](i32 token) { return std::exp((logits[token] - logits[most_likely]) / options.temperature); };
  TokensByLogit tokens(logits);
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += weight(count < logits.size() ? tokens[i] : static_cast<i32>(i));

  // The shortest list of tokens with the weight top_p * total.
  double kept_weight = total;
  std::size_t kept = count;
  if (options.top_p < 1) {
    kept_weight = 0;
    for (kept = 0; kept < count && kept_weight < options.top_p * total;) kept_weight += weight(tokens[kept++]);
  }

  const Philox4 bits = philox4x32(philox_key(static_cast<u64>(options.seed), "sampling"),
                                  {static_cast<u32>(draw), static_cast<u32>(draw >> 32), 0, 0});
  double remaining = uniform_open(bits[0]) * kept_weight;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    remaining -= weight(tokens[i]);
    if (remaining <= 0) return tokens[i];
  }
  return tokens[kept - 1];
}

std::vector<i32> draft_tokens(std::span<const i32> tokens, const DraftOptions& options, i64 count) {
  const i64 size = std::ssize(tokens);
  i64 end = 0, longest = 0;  // the best occurrence ends before `end`
  for (i64 at = size - 1; at > 0 && longest < options.prompt_lookup_max; --at) {
    i64 n = 0;
    while (n < options.prompt_lookup_max && n < at && tokens[at - 1 - n] == tokens[size - 1 - n]) ++n;
    if (n > longest) longest = n, end = at;
  }
  if (longest == 0) return {};
  const auto draft =
      tokens.subspan(static_cast<std::size_t>(end), static_cast<std::size_t>(std::min(count, size - end)));
  return {draft.begin(), draft.end()};
}

namespace {

/// Gathers logits [rows, padded vocabulary / tp], sharded over tensor-parallel ranks, as fp32 [tp, rows, padded
/// vocabulary / tp].
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

  GenerationCounts run(const TokenListener& deliver) {
    for (active_texts_ = texts_.size(); active_texts_ > 0;) {
      if (known_ > longest_) keep_later_half();
      draft();
      extend_all(next_logits(), deliver);
    }
    return counts_;
  }

 private:
  static std::size_t length(const TextStart& text) { return text.prompt.size(); }
  static void drop_front(std::vector<i32>& tokens, i64 count) {
    if (count > 0) tokens.erase(tokens.begin(), tokens.begin() + count);
  }

  /// Drafts the same number of tokens for each text. Longer prompts supply theirs.
  void draft() {
    i64 count = std::min(limits_.drafts.num_speculative_tokens, longest_ - known_);
    drafts_.assign(texts_.size(), {});
    for (std::size_t i = 0; i < texts_.size() && count > 0; ++i) {
      const std::span<const i32> tokens = texts_[i].prompt;
      drafts_[i].assign(tokens.begin() + known_, tokens.end());
      if (has_ended(i)) drafts_[i].resize(static_cast<std::size_t>(count), 0);
      if (drafts_[i].empty()) drafts_[i] = draft_tokens(tokens, limits_.drafts, count);
      count = std::min(count, std::ssize(drafts_[i]));
    }
    for (std::vector<i32>& draft : drafts_) draft.resize(static_cast<std::size_t>(count));
    drafted_ = count;
    ++counts_.passes;
    drafted_texts_ = 0;
    for (std::size_t i = 0; i < texts_.size(); ++i)
      drafted_texts_ += std::ssize(texts_[i].prompt) == known_ && !has_ended(i);
    counts_.drafted += count * drafted_texts_;
  }

  /// Appends tokens to all texts, until one of them differs from its draft.
  void extend_all(std::span<const float> logits, const TokenListener& deliver) {
    for (i64 accepted = 0;; ++accepted) {
      read_ = known_;
      for (std::size_t i = 0; i < texts_.size(); ++i) {
        if (std::ssize(texts_[i].prompt) == known_) extend(i, row(logits, accepted, i), deliver);
      }
      ++known_;
      const auto is_as_drafted = [&](std::size_t i) {
        return token(i, known_ - 1) == drafts_[i][static_cast<std::size_t>(accepted)];
      };
      if (active_texts_ == 0 || accepted == drafted_) return;
      for (std::size_t i = 0; i < texts_.size(); ++i) {
        if (!is_as_drafted(i)) return;
      }
      counts_.accepted += drafted_texts_;
    }
  }

  bool has_ended(std::size_t text) const { return new_tokens_[text] >= limits_.max_new_tokens; }
  /// Returns a token of a text or, after its end, of its draft.
  i32 token(std::size_t text, i64 at) const {
    const std::vector<i32>& tokens = texts_[text].prompt;
    return at < std::ssize(tokens) ? tokens[static_cast<std::size_t>(at)]
                                   : drafts_[text][static_cast<std::size_t>(at - known_)];
  }

  void keep_later_half() {
    const i64 dropped = known_ - (longest_ + 1) / 2;
    for (TextStart& text : texts_) drop_front(text.prompt, dropped);
    known_ -= dropped;
    read_ = 0;
  }

  /// Appends a token to a text that has not ended, or padding to one that has.
  void extend(std::size_t i, std::span<const float> logits, const TokenListener& deliver) {
    const bool can_continue = !has_ended(i);
    const i32 token = can_continue ? sample_token(logits, texts_[i].sampling, static_cast<u64>(new_tokens_[i]++)) : 0;
    texts_[i].prompt.push_back(token);
    if (!can_continue) return;
    const bool stops = std::ranges::count(limits_.stop_tokens, token) > 0;
    if (!stops) deliver(i, token);
    if (stops) new_tokens_[i] = limits_.max_new_tokens;
    if (!has_ended(i)) return;
    deliver(i, -1);
    --active_texts_;
  }

  i64 unread_length() const { return known_ + drafted_ - read_; }

  /// Returns the known tokens of all texts from position read_, and the drafts, int32 [positions, texts].
  Tensor unread() const {
    std::vector<i32> tokens;
    for (i64 at = read_; at < known_ + drafted_; ++at) {
      for (std::size_t i = 0; i < texts_.size(); ++i) tokens.push_back(token(i, at));
    }
    return integers(tokens, {unread_length(), static_cast<i64>(texts_.size())}, stage_.context().device);
  }

  /// Returns the positions at which the documents of the tokens of unread() begin, in the same shape.
  Tensor unread_starts() const {
    const auto batch = static_cast<i64>(texts_.size());
    std::vector<i32> starts(static_cast<std::size_t>(unread_length() * batch));
    for (i64 b = 0; b < batch; ++b) {
      i32 start = 0;
      for (i64 at = 0; at < known_ + drafted_; ++at) {
        if (at > 0 && token(static_cast<std::size_t>(b), at - 1) == limits_.documents.eod) start = static_cast<i32>(at);
        if (at >= read_) starts[static_cast<std::size_t>((at - read_) * batch + b)] = start;
      }
    }
    return integers(starts, {unread_length(), batch}, stage_.context().device);
  }

  /// Returns the logits after the last known token and after each draft token of every text, on every rank:
  /// [tp, 1 + drafted, texts, padded vocabulary / tp].
  std::vector<float> next_logits() {
    const ModelContext& model = stage_.context();
    const auto batch = static_cast<i64>(texts_.size()), rows = (1 + drafted_) * batch;
    const int tp = parallel_.tp->size();
    Tensor all = Tensor::empty({tp, rows, model.config.padded_vocab_size() / tp}, DType::F32, model.device);
    const auto prepare = [&](int, MicrobatchContext& context) {
      context.positions.first = read_;
      context.kv_cache = &cache_;
      if (!limits_.documents.has_starts()) return;
      const Tensor starts = unread_starts();
      if (limits_.documents.resets_attention) context.attention_starts = starts;
      if (limits_.documents.resets_positions) context.position_starts = starts;
    };
    const auto output = [&](int, const Tensor& x, MicrobatchContext& context) {
      std::vector<i32> last_rows(static_cast<std::size_t>(rows));
      std::iota(last_rows.begin(), last_rows.end(), static_cast<i32>(unread_length() * batch - rows));
      const Tensor logits = stage_.logits_of_rows(x, integers(last_rows, {rows}, model.device), context);
      all = gather_logits(logits, *parallel_.tp);
    };
    run_forward(stage_, parallel_,
                {.seq = unread_length(),
                 .batch = batch,
                 .tokens = [&](int) { return unread(); },
                 .prepare = prepare,
                 .output = output});
    parallel_.pp->broadcast(all, parallel_.pp->size() - 1).wait();
    parallel_.dp->broadcast(all, 0).wait();  // ranks on different processors could otherwise choose different tokens
    return read_values<float>(all);
  }

  /// Returns the logits of one text after `position` draft tokens, without the padding of the vocabulary.
  std::vector<float> row(std::span<const float> logits, i64 position, std::size_t text) const {
    const auto parts = static_cast<std::size_t>(parallel_.tp->size());
    const std::size_t rows = static_cast<std::size_t>(1 + drafted_) * texts_.size();
    const std::size_t width = logits.size() / parts / rows;
    const std::size_t index = static_cast<std::size_t>(position) * texts_.size() + text;
    std::vector<float> values;
    for (std::size_t part = 0; part < parts; ++part) {
      const std::span<const float> from = logits.subspan((part * rows + index) * width, width);
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
  i64 known_ = 0;                         // number of tokens that every text has
  i64 read_ = 0;                          // number of these that the cache has
  std::vector<std::vector<i32>> drafts_;  // by text: tokens from position known_ of the next pass
  i64 drafted_ = 0;                       // number of tokens of each draft
  i64 drafted_texts_ = 0;                 // number of texts that the drafts continue, unlike prompts
  GenerationCounts counts_;
  std::size_t active_texts_ = 0;  // number of texts that have not ended
};

}  // namespace

GenerationCounts generate(GPTModel& stage, ParallelState& parallel, std::vector<TextStart> texts,
                          const GenerationLimits& limits, const TokenListener& deliver) {
  if (texts.empty()) return {};
  return Generation(stage, parallel, std::move(texts), limits).run(deliver);
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

#include "megatron_cpp/inference/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "megatron_cpp/inference/forward_pipeline.h"
#include "tensor/integers.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

using Windows = std::span<const EvaluationWindow>;

/// Values of windows side by side, [seq, batch]: `value(window, s)` at row s of each, `rest` in what windows leave.
template <class F>
std::vector<i32> side_by_side(Windows windows, i64 seq, i64 batch, i32 rest, F&& value) {
  std::vector<i32> values(static_cast<std::size_t>(seq * batch), rest);
  for (std::size_t b = 0; b < windows.size(); ++b) {
    for (i64 s = 0; s < windows[b].length - 1; ++s)
      values[static_cast<std::size_t>(s * batch) + b] = value(windows[b], s);
  }
  return values;
}

/// Losses as fp64.
std::vector<double> values_of(const Tensor& t) {
  if (t.dtype() == DType::F64) return read_values<double>(t);
  const std::vector<float> values = read_values<float>(t);
  return {values.begin(), values.end()};
}

/// The windows of one text on their way through this rank's stage, and the losses of their tokens.
class TextScorer {
 public:
  TextScorer(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens, Windows windows, i64 batch)
      : stage_(stage), parallel_(parallel), tokens_(tokens), windows_(windows), batch_(batch), losses_(tokens.size()) {
    i64 longest = 0;
    for (const EvaluationWindow& window : windows) longest = std::max(longest, window.length - 1);
    // Each context-parallel rank has as much from the front as from the back.
    const ContextParallel& cp = stage.context().cp;
    const i64 step = cp.size() == 1 ? 1 : 2 * cp.size();
    seq_ = (longest + step - 1) / step * step;
    rows_ = seq_ / cp.size();
    cut_ = std::make_shared<const SampleCut>(SampleCut::zigzag(cp.cut, seq_));
    at_ = cut_->of_rank(cp.rank);
  }

  i64 batches() const { return (static_cast<i64>(windows_.size()) + batch_ - 1) / batch_; }

  /// Batches first, first + step, ... below `end`. Called by all ranks of a pipeline.
  void score(i64 first, i64 step, i64 end) {
    const auto index = [=](int i) { return first + i * step; };
    // Where tokens of several batches meet around the experts, ranks score as many each, of which the last may be
    // empty.
    const bool meets_others = parallel_.layer->size() > parallel_.tp_cp->size();
    const i64 from = meets_others ? first - parallel_.data->rank() : first;
    const ForwardTask task{
        .microbatches = static_cast<int>((end - from + step - 1) / step),
        .seq = rows_,
        .batch = batch_,
        .tokens = [&](int i) { return inputs(index(i)); },
        .prepare = [&](Pass& pass) { pass.positions = at_, pass.cut = cut_; },
        .output = [&](int i, const Tensor& x, Pass& pass) { take_losses(index(i), x, pass); },
    };
    if (task.microbatches > 0) run_forward(stage_, parallel_, task);
  }

  /// Of every token, on every rank; called by all.
  std::vector<double> losses() {
    Tensor all = Tensor::empty({static_cast<i64>(losses_.size())}, DType::F64, stage_.context().device);
    write_values(losses_, all);
    parallel_.world.all_reduce(all, ReduceOp::Sum).wait();  // one rank has it, the others have zero
    return read_values<double>(all);
  }

 private:
  Windows windows_of(i64 index) const {
    const auto begin = std::min(static_cast<std::size_t>(index * batch_), windows_.size());
    return windows_.subspan(begin, std::min(static_cast<std::size_t>(batch_), windows_.size() - begin));
  }
  i32 token(i64 index) const { return tokens_[static_cast<std::size_t>(index)]; }
  Tensor inputs(i64 index) const {
    return place(side_by_side(windows_of(index), seq_, batch_, 0,
                              [&](const EvaluationWindow& window, i64 s) { return token(window.begin + s); }));
  }
  /// Only those that count; the others are -1.
  Tensor targets(i64 index) const {
    return place(side_by_side(windows_of(index), seq_, batch_, -1, [&](const EvaluationWindow& window, i64 s) {
      return s >= window.length - 1 - window.scored ? token(window.begin + s + 1) : -1;
    }));
  }
  Tensor place(const std::vector<i32>& values) const {
    return rows_at(integers(values, {seq_, batch_}, stage_.context().device), at_, rows_);
  }

  void take_losses(i64 index, const Tensor& input, Pass& pass) {
    const TokenLosses result = stage_.loss(input, targets(index), /*grad_scale=*/1, pass);
    if (parallel_.tp->rank() != 0) return;
    const std::vector<double> per_token = values_of(result.per_token);
    const Windows windows = windows_of(index);
    for (std::size_t b = 0; b < windows.size(); ++b) {
      const EvaluationWindow& window = windows[b];
      for (i64 row = 0; row < rows_; ++row) {
        const i64 s = at_.at(row);
        if (s >= window.length - 1 - window.scored && s < window.length - 1)
          losses_[static_cast<std::size_t>(window.begin + s + 1)] =
              per_token[static_cast<std::size_t>(row * batch_) + b];
      }
    }
  }

  GPTModel& stage_;
  ParallelState& parallel_;
  std::span<const i32> tokens_;
  Windows windows_;
  i64 batch_, seq_ = 0;  // of windows side by side
  i64 rows_ = 0;         // of these, that this rank has
  std::shared_ptr<const SampleCut> cut_;
  PositionRanges at_;           // their positions
  std::vector<double> losses_;  // by token; zero for those that other ranks score
};

}  // namespace

std::vector<EvaluationWindow> evaluation_windows(i64 tokens, i64 seq_length, i64 stride) {
  MCPP_CHECK(stride >= 1 && stride <= seq_length, "stride ", stride, " for windows of ", seq_length);
  std::vector<EvaluationWindow> windows;
  for (i64 scored_to = 1; scored_to < tokens;) {  // tokens [1, scored_to) are scored
    const i64 step = windows.empty() ? seq_length : stride;
    const i64 end = std::min(tokens, scored_to + step);
    const i64 begin = std::max<i64>(0, end - 1 - seq_length);
    windows.push_back({begin, end - begin, end - scored_to});
    scored_to = end;
  }
  return windows;
}

double Perplexity::token_perplexity() const {
  return std::exp(loss());
}
double Perplexity::word_perplexity() const {
  return std::exp(nll / static_cast<double>(words));
}
double Perplexity::byte_perplexity() const {
  return std::exp(nll / static_cast<double>(bytes));
}
double Perplexity::bits_per_byte() const {
  return nll / static_cast<double>(bytes) / std::numbers::ln2;
}

Perplexity evaluate_tokens(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                           const EvaluationOptions& options) {
  const std::vector<EvaluationWindow> windows =
      evaluation_windows(static_cast<i64>(tokens.size()), stage.context().config.seq_length, options.stride);
  const i64 all = static_cast<i64>(windows.size()), batch = std::clamp<i64>(all, 1, options.micro_batch_size);
  TextScorer scorer(stage, parallel, tokens, windows, batch);
  // A pipeline stays full over several batches, of which each has its activations in memory; so not over all at once.
  const i64 ranks = parallel.data->size(), mine = parallel.data->rank(), round = ranks * 4 * parallel.pp->size();
  for (i64 begin = 0; begin < scorer.batches(); begin += round) {
    const i64 end = std::min(begin + round, scorer.batches());
    scorer.score(begin + mine, ranks, end);
    options.progress(std::min(all, end * batch), all);
  }
  const std::vector<double> losses = scorer.losses();
  Perplexity result;
  result.nll = std::accumulate(losses.begin(), losses.end(), 0.0);
  for (const EvaluationWindow& window : windows) result.tokens += window.scored;
  return result;
}

}  // namespace mcpp

#include "megatron_cpp/inference/window_scorer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "base/integer_math.h"
#include "base/strings.h"
#include "megatron_cpp/setup/memory_check.h"
#include "model/config/block_spec.h"
#include "model/layer_memory.h"
#include "model/layers/kv_cache.h"
#include "parallel/pp/engine.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/schedule_kind.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Attention releases its tensors before the MLP allocates its own.
constexpr double kBlocksPerLayer = 2;

/// The tokens of a batch, and the predictions that are scored, are padded to a multiple of this. With a different
/// number of rows, GEMMs may round differently.
constexpr i64 kRowStep = 32;

double weight_bytes(GPTModel& stage) {
  i64 weights = 0;
  stage.visit([&](const Param& param, int) { weights += param.value.bytes(); });
  return static_cast<double>(weights);
}

}  // namespace

double scoring_bytes(GPTModel& stage, const ScoringShape& shape) {
  const ModelContext& context = stage.context();
  ModelConfig config = context.config;
  config.seq_length = shape.seq;
  const ActivationSetup setup{.dtype = context.dtype,
                              .micro_batch_size = shape.batch,
                              .tensor_parallel = context.tp.size(),
                              .sequence_parallel = context.sequence_parallel,
                              .partition = context.cp.partition,
                              .cp_comm_type = context.cp.comm_type,
                              .expert_parallel = context.experts.ep,
                              .expert_tensor_parallel = context.experts.tp};
  LayerSizes sizes(config, setup);
  double max_bytes = 0;
  for (i64 layer = stage.stage().first_layer; layer < stage.stage().end_layer; ++layer)
    max_bytes = std::max(max_bytes, static_cast<double>(sizes.layer(layer).saved) / kBlocksPerLayer);
  if (stage.stage().has_output) {
    const i64 all = std::max<i64>(1, shape.seq * shape.batch);
    // A recipe needs the logits of all predictions.
    const bool needs_all = context.fp8_recipe("output_layer").has_value();
    const double share =
        needs_all ? 1 : static_cast<double>(round_up(shape.scored, kRowStep)) / static_cast<double>(all);
    max_bytes = std::max(max_bytes, share * static_cast<double>(sizes.output(stage.stage()).saved));
  }
  return weight_bytes(stage) + max_bytes;
}

double generation_bytes(GPTModel& stage, i64 batch) {
  const ModelContext& context = stage.context();
  const ModelConfig& config = context.config;
  i64 cached = 0;
  for (const BlockSpec& block : block_specs(config, stage.stage().first_layer, stage.stage().end_layer))
    cached += KvCache::layer_bytes(context, block, batch, config.max_positions());
  // All ranks get the rows of logits as fp32 values to sample from.
  const i64 logits = batch * config.vocab_size * static_cast<i64>(sizeof(float));
  return weight_bytes(stage) + static_cast<double>(cached) + static_cast<double>(logits);
}

void check_generation_memory(GPTModel& stage, ParallelState& parallel, i64 batch) {
  if (stage.context().device.type() != DeviceType::Cpu) return;
  check_memory(generation_bytes(stage, batch), parallel.world, str(batch, " texts in one batch (--batch_size)"),
               "a smaller --batch_size, a lower --precision, or ranks on more nodes that share the model "
               "(--parallel.tensor_model_parallel_size, --parallel.pipeline_model_parallel_size) need less");
}

void check_scoring_memory(GPTModel& stage, ParallelState& parallel, const ScoringShape& shape) {
  if (stage.context().device.type() != DeviceType::Cpu) return;
  check_memory(scoring_bytes(stage, shape), parallel.world,
               str("passes over ", shape.batch, " windows of ", shape.seq, " tokens (--micro_batch_size)"),
               "a smaller --micro_batch_size or --window, a lower --precision, or ranks on more nodes that share "
               "the model (--parallel.tensor_model_parallel_size, --parallel.pipeline_model_parallel_size) need less");
}

namespace {

using Windows = std::span<const EvaluationWindow>;

/// Returns losses as fp64.
std::vector<double> values_of(const Tensor& t) {
  if (t.dtype() == DType::F64) return read_values<double>(t);
  const std::vector<float> values = read_values<float>(t);
  return {values.begin(), values.end()};
}

/// Returns the tokens that the model reads to score a window: all but the last one.
std::span<const i32> inputs_of(const EvaluationWindow& window, std::span<const i32> tokens) {
  return tokens.subspan(static_cast<std::size_t>(window.begin), static_cast<std::size_t>(window.length - 1));
}

/// Splits windows into runs with equal inputs, which one forward pass scores: the choices "A" to "D" of a question.
std::vector<Windows> runs_of_equal_inputs(Windows windows, std::span<const i32> tokens) {
  std::vector<Windows> runs;
  for (std::size_t begin = 0, end = 0; begin < windows.size(); begin = end) {
    const std::span<const i32> inputs = inputs_of(windows[begin], tokens);
    while (end < windows.size() && std::ranges::equal(inputs_of(windows[end], tokens), inputs)) ++end;
    runs.push_back(windows.subspan(begin, end - begin));
  }
  return runs;
}

i64 longest_of(std::span<const Windows> runs) {
  i64 longest = 0;
  for (const Windows run : runs) longest = std::max(longest, run.front().length - 1);
  return longest;
}

bool counts(const EvaluationWindow& window, i64 s) {
  return s >= window.length - 1 - window.scored && s < window.length - 1;
}

/// Returns, for each row of logits [n, V / tp], the most likely of the first `vocab_size` tokens over all ranks of
/// `tp`; ties go to the lower token.
std::vector<i32> likeliest(const Tensor& logits, i64 vocab_size, Communicator& tp) {
  const i64 rows = logits.dim(0), columns = logits.dim(1), first = tp.rank() * columns;
  const i64 valid = std::clamp<i64>(vocab_size - first, 0, columns);
  Tensor logits_fp32 = Tensor::empty({rows, columns}, DType::F32, logits.device());
  ops::copy(logits, logits_fp32);
  const std::vector<float> values = read_values<float>(logits_fp32);
  std::vector<double> row_maxima;  // largest logit of each row and its token
  for (i64 row = 0; row < rows; ++row) {
    const auto begin = values.begin() + row * columns, best = std::max_element(begin, begin + valid);
    row_maxima.push_back(valid > 0 ? *best : -std::numeric_limits<double>::infinity());
    row_maxima.push_back(static_cast<double>(first + (best - begin)));
  }
  Tensor local = Tensor::empty({2 * rows}, DType::F64, logits.device());
  Tensor all = Tensor::empty({2 * rows * tp.size()}, DType::F64, logits.device());
  write_values(row_maxima, local);
  tp.all_gather(local, all).wait();
  const std::vector<double> gathered = read_values<double>(all);
  std::vector<i32> tokens;
  for (i64 row = 0; row < rows; ++row) {
    auto best = static_cast<std::size_t>(2 * row);
    for (std::size_t at = best; at < gathered.size(); at += static_cast<std::size_t>(2 * rows)) {
      if (gathered[at] > gathered[best]) best = at;
    }
    tokens.push_back(static_cast<i32>(gathered[best + 1]));
  }
  return tokens;
}

/// Execution of batches of windows on this rank's stage, and the resulting scores. A sample of a batch scores all
/// windows of a run with equal inputs.
class WindowScorer {
 public:
  WindowScorer(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens, Windows windows, i64 batch,
               const ScoringOptions& options)
      : stage_(stage),
        parallel_(parallel),
        tokens_(tokens),
        windows_(windows),
        runs_(runs_of_equal_inputs(windows, tokens)),
        batch_(std::clamp<i64>(std::ssize(runs_), 1, batch)),
        finds_likeliest_(options.compute_most_likely),
        documents_(options.documents),
        losses_(tokens.size()),
        likeliest_(finds_likeliest_ ? tokens.size() : 0) {}

  i64 batches() const { return ceil_div(std::ssize(runs_), batch_); }
  /// Returns the number of windows in the first `count` batches.
  i64 windows_before(i64 count) const {
    return count < batches() ? runs_[static_cast<std::size_t>(count * batch_)].data() - windows_.data()
                             : std::ssize(windows_);
  }
  /// Returns the largest number of tokens and scored predictions of a batch.
  ScoringShape shape() const {
    ScoringShape shape{.seq = longest_of(runs_), .batch = batch_};
    for (i64 index = 0; index < batches(); ++index) {
      i64 scored = 0;
      for (const Windows run : runs_of(index)) {
        for (const EvaluationWindow& window : run) scored += window.scored;
      }
      shape.scored = std::max(shape.scored, scored);
    }
    return shape;
  }

  /// Scores batches [begin, end), of which this rank takes its share. Collective.
  void score(i64 begin, i64 end) {
    set_length(begin, end);
    const i64 step = parallel_.dp->size(), first = begin + parallel_.dp->rank();
    const auto index = [=](int i) { return first + i * step; };
    // If experts process tokens of several batches together, all ranks score the same number, of which the last may be
    // empty.
    const bool shares_experts = parallel_.layer_group->size() > parallel_.tp_cp->size();
    const i64 from = shares_experts ? begin : first;
    const ForwardTask task{
        .microbatches = static_cast<int>(ceil_div(end - from, step)),
        .seq = rows_,
        .batch = batch_,
        .tokens = [&](int i) { return inputs(index(i)); },
        .prepare = [&](int i, MicrobatchContext& context) { prepare(index(i), context); },
        .output = [&](int i, const Tensor& x, MicrobatchContext& context) { take_scores(index(i), x, context); },
    };
    if (task.microbatches > 0) run_forward(stage_, parallel_, task);
  }

  /// Returns the scores of every token on every rank. Collective.
  TokenScores scores() {
    TokenScores scores{.nll = sum_over_ranks(losses_), .is_most_likely = {}};
    if (!finds_likeliest_) return scores;
    for (const double is_most_likely : sum_over_ranks(likeliest_)) scores.is_most_likely.push_back(is_most_likely != 0);
    return scores;
  }

 private:
  void set_length(i64 begin, i64 end) {
    i64 longest = 0;
    for (i64 index = begin; index < end; ++index) longest = std::max(longest, longest_of(runs_of(index)));
    // Each context-parallel rank has an equal number of positions from the front and from the back.
    const ContextParallel& cp = stage_.context().cp;
    const i64 length_step = kRowStep / std::gcd(kRowStep, batch_) * cp.size();
    longest = std::min(stage_.context().config.seq_length, round_up(longest, length_step));
    const i64 step = cp.size() == 1 ? 1 : 2 * cp.size();
    seq_ = round_up(longest, step);
    rows_ = seq_ / cp.size();
    partition_ = std::make_shared<const SamplePartition>(SamplePartition::zigzag(cp.partition, seq_));
    at_ = partition_->rank_positions(cp.rank);
  }

  std::vector<double> sum_over_ranks(const std::vector<double>& local) {
    Tensor all = Tensor::empty({static_cast<i64>(local.size())}, DType::F64, stage_.context().device);
    write_values(local, all);
    parallel_.world.all_reduce(all, ReduceOp::Sum).wait();  // one rank has the value, the others have zero
    return read_values<double>(all);
  }

  std::span<const Windows> runs_of(i64 index) const {
    const auto begin = std::min(static_cast<std::size_t>(index * batch_), runs_.size());
    return std::span(runs_).subspan(begin, std::min(static_cast<std::size_t>(batch_), runs_.size() - begin));
  }
  i32 token(i64 index) const { return tokens_[static_cast<std::size_t>(index)]; }
  /// Returns the tokens of a batch, [seq, batch]; windows are padded with token 0.
  Tensor inputs(i64 index) const {
    const std::span<const Windows> runs = runs_of(index);
    std::vector<i32> values(static_cast<std::size_t>(seq_ * batch_), 0);
    for (std::size_t b = 0; b < runs.size(); ++b) {
      const std::span<const i32> inputs = inputs_of(runs[b].front(), tokens_);
      for (std::size_t s = 0; s < inputs.size(); ++s) values[s * static_cast<std::size_t>(batch_) + b] = inputs[s];
    }
    Tensor t = integers(values, {seq_, batch_}, stage_.context().device);
    return select_rows(t, at_, rows_);
  }
  void prepare(i64 index, MicrobatchContext& context) const {
    context.positions = at_;
    context.partition = partition_;
    if (!documents_.has_starts()) return;
    Tensor starts = Tensor::empty({seq_, batch_}, DType::I32, stage_.context().device);
    write_values(document_starts(index), starts);
    const ContextParallel& cp = stage_.context().cp;
    if (documents_.resets_positions) context.position_starts = select_rows(starts, at_, rows_);
    if (documents_.resets_attention)
      context.attention_starts =
          select_rows(starts, partition_->member_positions(cp.member()), rows_ * cp.partition.heads);
  }
  /// Returns the position in its window at which the document of each token begins, [seq, batch], as in training
  /// samples.
  std::vector<i32> document_starts(i64 index) const {
    const std::span<const Windows> runs = runs_of(index);
    std::vector<i32> starts(static_cast<std::size_t>(seq_ * batch_), 0);
    for (std::size_t b = 0; b < runs.size(); ++b) {
      const std::span<const i32> inputs = inputs_of(runs[b].front(), tokens_);
      i32 start = 0;
      for (i64 s = 0; s < seq_; ++s) {
        if (s > 0 && s <= std::ssize(inputs) && inputs[static_cast<std::size_t>(s - 1)] == documents_.eod)
          start = static_cast<i32>(s);
        starts[static_cast<std::size_t>(s * batch_) + b] = start;
      }
    }
    return starts;
  }
  /// Predictions of this rank that count: their rows in the batch, ascending, and the tokens of the text that they
  /// predict.
  struct Predictions {
    std::vector<i32> rows, targets;
  };
  Predictions predictions_of(i64 index) const {
    const std::span<const Windows> runs = runs_of(index);
    Predictions predictions;
    for (i64 row = 0; row < rows_; ++row) {
      const i64 s = at_.at(row);
      for (std::size_t b = 0; b < runs.size(); ++b) {
        for (const EvaluationWindow& window : runs[b]) {
          if (!counts(window, s)) continue;
          predictions.rows.push_back(static_cast<i32>(row * batch_ + static_cast<i64>(b)));
          predictions.targets.push_back(static_cast<i32>(window.begin + s + 1));
        }
      }
    }
    return predictions;
  }

  void take_scores(i64 index, const Tensor& input, MicrobatchContext& context) {
    const Predictions predictions = predictions_of(index);
    Device& device = stage_.context().device;
    // Ranks without predictions take part, because other ranks may wait for them in the layers.
    const i64 padded = round_up(std::max<i64>(1, std::ssize(predictions.rows)), kRowStep);
    std::vector<i32> rows = predictions.rows, targets;
    for (const i32 target : predictions.targets) targets.push_back(token(target));
    rows.resize(static_cast<std::size_t>(padded), -1);
    targets.resize(static_cast<std::size_t>(padded), -1);
    Tensor logits = stage_.logits_of_rows(input, integers(rows, device), context);
    const TokenLosses result =
        vocab_parallel_cross_entropy(logits, integers(targets, device), parallel_.tp->rank() * logits.dim(1),
                                     stage_.context().config.vocab_size, /*grad_scale=*/{}, *parallel_.tp);
    if (finds_likeliest_) take_likeliest(predictions, logits);
    if (parallel_.tp->rank() != 0) return;
    const std::vector<double> per_token = values_of(result.per_token);
    for (std::size_t i = 0; i < predictions.targets.size(); ++i)
      losses_[static_cast<std::size_t>(predictions.targets[i])] = per_token[i];
  }

  void take_likeliest(const Predictions& predictions, const Tensor& logits) {
    const auto count = std::ssize(predictions.rows);
    if (count == 0) return;
    const std::vector<i32> best = likeliest(logits.slice(0, count), stage_.context().config.vocab_size, *parallel_.tp);
    if (parallel_.tp->rank() != 0) return;
    for (std::size_t i = 0; i < best.size(); ++i)
      likeliest_[static_cast<std::size_t>(predictions.targets[i])] = best[i] == token(predictions.targets[i]);
  }

  GPTModel& stage_;
  ParallelState& parallel_;
  std::span<const i32> tokens_;
  Windows windows_;
  std::vector<Windows> runs_;
  i64 batch_;  // samples of a pass
  bool finds_likeliest_;
  DocumentRules documents_;
  i64 seq_ = 0;   // length of the windows in a batch
  i64 rows_ = 0;  // rows of these windows on this rank
  std::shared_ptr<const SamplePartition> partition_;
  PositionRanges at_;                       // positions of these rows
  std::vector<double> losses_, likeliest_;  // by token; zero for tokens that other ranks score
};

}  // namespace

i64 batches_per_round(const ParallelState& parallel) {
  const int stages = parallel.pp->size();
  return parallel.dp->size() * (stages == 1 ? 1 : 4 * stages);
}

TokenScores score_windows(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                          std::span<const EvaluationWindow> windows, const ScoringOptions& options) {
  WindowScorer scorer(stage, parallel, tokens, windows, options.micro_batch_size, options);
  check_scoring_memory(stage, parallel, scorer.shape());
  const i64 round = batches_per_round(parallel);
  for (i64 begin = 0; begin < scorer.batches(); begin += round) {
    const i64 end = std::min(begin + round, scorer.batches());
    scorer.score(begin, end);
    options.progress(scorer.windows_before(end), std::ssize(windows));
  }
  return scorer.scores();
}

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
  Tensor backward(int, const Tensor&, bool) override { fail_backward(); }
  Tensor backward_input(int, const Tensor&) override { fail_backward(); }
  void backward_weight(int, bool) override { fail_backward(); }
  void reduce_gradients() override { fail_backward(); }
  Tensor empty_input() override {
    const ModelContext& context = model_.context();
    return Tensor::empty({task_.seq, task_.batch, context.config.hidden_size}, context.dtype, context.device);
  }
  Tensor empty_output_gradient() override { fail_backward(); }

 private:
  [[noreturn]] static void fail_backward() { fail(ExitCode::Internal, "a forward-only schedule has no backward pass"); }

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

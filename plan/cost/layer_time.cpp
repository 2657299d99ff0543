#include "plan/cost/layer_time.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/rank_cost_model.h"

namespace mcpp {
namespace {

/// Attention with head widths below 128, and with keys wider than values as in multi-latent attention (measured on a
/// B200 with 192 and 128 channels), uses the matrix units less efficiently.
constexpr double kSmallHeadEfficiency = 0.72, kWideKeyEfficiency = 0.78;
/// Attention's backward pass relative to its forward pass: operations, and speed.
constexpr double kBackwardWork = 2.5, kBackwardSpeed = 0.97;

/// Returns the precision of a recorded GEMM. A recipe that the device does not have is emulated in bf16.
GemmType gemm_type(const PredictionInput& input, const OpRecord& op) {
  const GemmType type = gemm_type_of(op.recipe);
  if (type != GemmType::Bf16) return input.hardware.has_gemms(type) ? type : GemmType::Bf16;
  return op.dtype == input.work.dtype ? input.work.gemms() : GemmType::Fp32;
}

}  // namespace

double attended_pairs(const Workload& work, const AttentionShape& shape) {
  return real(shape.batch * shape.query_heads * shape.queries) * shape.share *
         mean_attended_keys(work, shape.window, shape.chunk);
}

double attention_flops(const Workload& work, const AttentionShape& shape) {
  return 2 * real(shape.key_dim + shape.value_dim) * attended_pairs(work, shape);
}

namespace {

/// Seconds of the exchanges of a pass that overlap with another pass, and of those that do not: the exchange of choices
/// and weights, and the second hop of hierarchical dispatch.
struct ExchangeSeconds {
  double overlapped = 0, exposed = 0;
};

/// Time of a recorded trace: of a mixer or a feed-forward part, with its norms and its residual addition, or of the
/// output.
class TraceTime {
 public:
  /// `launches`: kernels launched by ops that are not recomputed and have a time per element.
  TraceTime(const RankCostModel& rank, const BlockTrace& trace, const MemoryPasses& launches)
      : rank_(rank),
        launches_(launches),
        kernels_(rank.kernels()),
        hw_(rank.input().hardware),
        program_(rank.input().program),
        work_(rank.input().work),
        layout_(rank.layout()),
        trace_(trace),
        axes_{{{kTpGroup, layout_.tp_group(), &PassTime::tensor_parallel},
               {kHeadsGroup, layout_.heads_group(), &PassTime::context_parallel},
               {kRingGroup, layout_.keys_group(), &PassTime::context_parallel},
               {kExchangeGroup, layout_.exchange_group(), &PassTime::expert_parallel},
               {kNodeExchangeGroup, layout_.node_exchange_group(), &PassTime::expert_parallel},
               {kSampleGroup, {.ranks = layout_.tp * layout_.cp, .stride = 1}, &PassTime::expert_parallel}}} {}

  /// Returns the seconds of all messages of layers with experts, exposed or not.
  ExchangeSeconds exchange_seconds(const OpTrace& trace) const {
    ExchangeSeconds seconds;
    for (const MessageRecord& message : trace.messages) {
      const Axis& axis = axis_of(message);
      if (axis.exposed == &PassTime::expert_parallel)
        (message.yields ? seconds.overlapped : seconds.exposed) += collective_seconds(message, axis.ranks);
    }
    return seconds;
  }

  UnitTime time() {
    const std::vector<double> forward_starts = starts(trace_.forward, &TraceTime::add_forward),
                              backward_starts = starts(trace_.backward, &TraceTime::add_backward);
    time_.forward.elementwise += rank_.seconds(0, launches_.forward);
    time_.backward_input.elementwise += rank_.seconds(0, launches_.backward);
    const bool splits_backward = row_of(layout_.schedule).splits_backward;
    add_messages(trace_.forward, forward_starts, time_.forward, {.overlaps = program_.overlaps_within_layers});
    add_messages(trace_.backward, backward_starts, time_.backward_input,
                 {.overlaps = program_.overlaps_within_layers && !splits_backward, .returns_gradients = true});
    if (layout_.recompute.granularity == Recompute::Granularity::Selective && program_.recomputed_gemms > 0) {
      time_.backward_input.gemms += program_.recomputed_gemms * time_.forward.gemms;
      time_.backward_input.elementwise += time_.forward.elementwise;
    }
    return time_;
  }

 private:
  /// Adds the ops of a trace. Returns the time at which each op starts if nothing waits for messages, and the end.
  std::vector<double> starts(const OpTrace& trace, void (TraceTime::*add_op)(const OpRecord&)) {
    std::vector<double> times{0};
    times.reserve(trace.ops.size() + 1);
    for (const OpRecord& op : trace.ops) {
      const double before = computing();
      (this->*add_op)(op);
      times.push_back(times.back() + computing() - before);
    }
    return times;
  }
  double computing() const {
    return time_.forward.computing() + time_.backward_input.computing() + time_.backward_weight.computing();
  }

  /// Adds an op of the forward pass and, for kinds without an op of their own in backward, its gradient.
  void add_forward(const OpRecord& op) {
    if (op.kind == OpKind::Loss) return add_loss(op);
    add(op, time_.forward, GemmPass::Forward);
    PassTime& backward = time_.backward_input;
    if (op.kind == OpKind::Residual) backward.elementwise += rank_.seconds(kernels_.residual.backward * op.elements, 0);
    if (op.kind != OpKind::Attention) return;
    if (work_.records_logits) time_.forward.attention += logits_seconds(op.attention);
    const double heads = op.attention.elements() * op.attention.share;
    time_.forward.elementwise += rank_.seconds(kernels_.heads.forward * heads, 0);
    backward.elementwise += rank_.seconds(kernels_.heads.backward * heads, 0);
  }

  /// The gradient of the loss is computed in forward by this program, and in backward by others.
  void add_loss(const OpRecord& op) {
    (op.is_backward ? time_.backward_input : time_.forward).elementwise +=
        rank_.seconds(kernels_.loss / 2 * op.elements, 0);
  }

  void add_backward(const OpRecord& op) {
    if (op.kind == OpKind::Quantize) {
      time_.backward_input.elementwise += rank_.traffic_seconds(program_.amax.backward * op.elements, 0);
      return;
    }
    add(op, op.is_weight_gradient ? time_.backward_weight : time_.backward_input,
        op.is_weight_gradient ? GemmPass::WeightGradient : GemmPass::InputGradient);
    const bool has_rate = op.kind == OpKind::Norm || op.kind == OpKind::Activation;
    if (has_rate && !op.is_backward) time_.backward_input.elementwise += rank_.seconds(0, 1);
  }

  void add(const OpRecord& op, PassTime& pass, GemmPass gemm_pass) const {
    const auto per_element = [&](const PassSeconds& rate) {
      pass.elementwise += rank_.seconds((op.is_backward ? rate.backward : rate.forward) * op.elements, 0);
    };
    switch (op.kind) {
      case OpKind::Matmul:
        pass.gemms += matmul_seconds(op, gemm_pass);
        pass.elementwise += encode_seconds(op, gemm_pass);
        break;
      case OpKind::Attention:
        pass.attention += program_.stores_scores ? stored_scores_seconds(op) : flash_attention_seconds(op);
        break;
      case OpKind::AttentionMerge:
        pass.context_parallel += memory_seconds(op);
        break;
      case OpKind::Memory:
        pass.elementwise += memory_seconds(op);
        break;
      case OpKind::Norm:
        return per_element(kernels_.norm);
      case OpKind::Residual:
        return per_element(kernels_.residual);
      case OpKind::Rotary:
        return per_element(kernels_.rope);
      case OpKind::Activation:
        return per_element(kernels_.activation);
      case OpKind::Bias:
        return per_element(kernels_.bias);
      case OpKind::Quantize:
        pass.elementwise += rank_.traffic_seconds(program_.amax.forward * op.elements, 0);
        break;
      case OpKind::Dropout:  // part of the rate of residual additions
      case OpKind::Loss:     // add_loss()
        break;
    }
  }

  double memory_seconds(const OpRecord& op) const {
    const double flops_seconds = op.flops > 0 ? op.flops / hw_.gemm_flops(work_.gemms()) : 0;
    return rank_.seconds(std::max(hw_.traffic_seconds(op.bytes), flops_seconds), 1);
  }

  double matmul_seconds(const OpRecord& op, GemmPass pass) const {
    const GemmType type = gemm_type(rank_.input(), op);
    if (type == GemmType::Fp32 && work_.gemms() != GemmType::Fp32)  // routers: few columns, bound by memory
      return rank_.seconds(std::max(op.flops / hw_.gemm_flops(type), hw_.traffic_seconds(op.bytes)), 1);
    const double output_bytes = op.is_weight_gradient ? program_.gradient_bytes : rank_.element_bytes();
    return rank_.gemm_seconds(type, op.matmul, output_bytes, pass);
  }

  /// Returns the time to round the operands of a low-precision GEMM: an input and a weight in forward, a gradient and
  /// one of these in backward. Each is read in bf16 and written as codes and, in emulation, decoded to bf16.
  double encode_seconds(const OpRecord& op, GemmPass pass) const {
    if (op.recipe == GemmRecipe::Bf16) return 0;
    const GemmType type = gemm_type_of(op.recipe);
    const double bytes = 2 + operand_bytes(type) + (hw_.has_gemms(type) ? 0 : operand_bytes(type) + 2);
    const MatmulShape& s = op.matmul;
    const bool is_forward = pass == GemmPass::Forward;
    const double elements = (is_forward ? program_.encode.forward : program_.encode.backward) * real(s.m * s.k) +
                            (is_forward ? program_.encode.forward : program_.reencode) * real(s.k * s.n);
    return rank_.seconds(hw_.traffic_seconds(bytes * elements * real(s.batch)), 0);
  }

  /// Returns attention's operations per second.
  double attention_rate(const AttentionShape& shape, bool is_backward) const {
    if (const MeasuredRates* measured = hw_.measured(work_.gemms()))
      return measured->attention_rate(shape.keys, shape.value_dim, is_backward);
    const double relative_rate = work_.dtype == DType::F32 ? hw_.device.fp32_attained / hw_.device.bf16_attained : 1;
    const double rate = 1e12 * hw_.device.attention_attained * program_.attention * relative_rate *
                        attention_efficiency(hw_, shape.keys, shape.query_heads * shape.batch) *
                        (shape.value_dim >= 128 ? 1 : kSmallHeadEfficiency) *
                        (shape.key_dim > shape.value_dim ? kWideKeyEfficiency : 1);
    return is_backward ? rate * kBackwardSpeed : rate;
  }

  double flash_attention_seconds(const OpRecord& op) const {
    const AttentionShape& shape = op.attention;
    const double flops = (op.is_backward ? kBackwardWork : 1) * attention_flops(work_, shape);
    const double scores = shape.has_dropout ? attended_pairs(work_, shape) : 0;
    const PassSeconds& dropped = kernels_.dropped_score;
    return rank_.seconds(
        flops / attention_rate(shape, op.is_backward) + scores * (op.is_backward ? dropped.backward : dropped.forward),
        op.is_backward ? 2 : 1);
  }

  /// Returns the time to compute the scores a second time, for their maximum of each head.
  double logits_seconds(const AttentionShape& shape) const {
    const double flops = 2 * real(shape.key_dim) * attended_pairs(work_, shape);
    return rank_.seconds(flops / attention_rate(shape, false), 2);
  }

  /// Returns the time of two GEMMs in forward or four in backward over all keys, and of passes over the scores.
  double stored_scores_seconds(const OpRecord& op) const {
    const AttentionShape& shape = op.attention;
    const i64 batch = shape.query_heads * shape.batch;
    const auto gemm_time = [&](i64 n, i64 k) {
      return rank_.gemm_seconds(GemmType::Bf16, {.m = shape.queries, .n = n, .k = k, .batch = batch},
                                rank_.element_bytes(), GemmPass::Forward);
    };
    const double scores = real(batch) * real(shape.queries) * real(shape.keys);
    const double passes = op.is_backward ? program_.scores.backward : program_.scores.forward;
    return gemm_time(shape.keys, shape.key_dim) + (op.is_backward ? 3 : 1) * gemm_time(shape.value_dim, shape.keys) +
           rank_.traffic_seconds(passes * scores, 2);
  }

  /// Hierarchical dispatch sends tokens through the group of all ranks that exchange them, but only to relays.
  bool is_inter_node_exchange(const MessageRecord& message) const {
    return layout_.dispatcher == TokenDispatcherType::Hierarchical && message.group == kExchangeGroup &&
           message.kind == MessageKind::AllToAll;
  }

  double collective_seconds(const MessageRecord& message, const RankGroup& all) const {
    const Collectives& collectives = rank_.collectives();
    const RankGroup group = is_inter_node_exchange(message) ? layout_.inter_node_exchange_group() : all;
    switch (message.kind) {
      case MessageKind::AllReduce:
        return collectives.all_reduce(message.bytes, group);
      case MessageKind::AllGather:
      case MessageKind::ReduceScatter:
      case MessageKind::Broadcast:
        return collectives.all_gather(message.bytes, group);
      case MessageKind::AllToAll:
        return collectives.all_to_all(message.bytes, group);
      case MessageKind::Send:
        return collectives.message(message.bytes, group.stride);
    }
    return 0;
  }

  struct Axis {
    const char* group;
    RankGroup ranks;
    double PassTime::*exposed;
  };
  const Axis& axis_of(const MessageRecord& message) const {
    const auto* axis = std::ranges::find(axes_, message.group, &Axis::group);
    MCPP_CHECK(axis != axes_.end(), "no axis has the group \"", message.group, "\"");
    return *axis;
  }

  struct MessageTiming {
    /// True: results are used when the recorded op needs them; false: at once. Backward with delayed weight gradients
    /// is predicted without overlap, because they gather their operand again.
    bool overlaps;
    bool returns_gradients = false;
  };
  /// Adds the exposed time of a pass's messages. `starts` are the times of its ops. Messages of a ring travel
  /// concurrently with attention, except that the last one in backward returns gradients to their owner when nothing is
  /// left to compute. Collectives run one after the other, concurrently with the ops that are queued until their
  /// results are used.
  void add_messages(const OpTrace& trace, const std::vector<double>& starts, PassTime& pass,
                    MessageTiming timing) const {
    double sent = 0, last = 0;
    double waits = 0, links_free = 0;
    for (const MessageRecord& message : trace.messages) {
      const Axis& axis = axis_of(message);
      const double seconds = collective_seconds(message, axis.ranks);
      if (message.kind == MessageKind::Send) {
        sent += std::exchange(last, seconds);
        continue;
      }
      links_free = std::max(links_free, waits + starts[message.first_op]) + seconds;
      const std::size_t use = timing.overlaps ? message.end_op : message.first_op;
      const double exposed = std::max(hw_.communication_slowdown() * seconds, links_free - waits - starts[use]);
      pass.*(axis.exposed) += exposed;
      waits += exposed;
    }
    if (!timing.returns_gradients) sent += std::exchange(last, 0);
    pass.context_parallel += std::max(hw_.communication_slowdown() * sent, sent - pass.attention) + last;
  }

  const RankCostModel& rank_;
  const MemoryPasses launches_;
  const KernelTimes& kernels_;
  const Hardware& hw_;
  const KernelTraits& program_;
  const Workload& work_;
  const Layout& layout_;
  const BlockTrace& trace_;
  const std::array<Axis, 6> axes_;
  UnitTime time_;
};

}  // namespace

namespace {

/// Reduces the exposed exchanges of a layer with experts by the passes that run together. The forward pass sends tokens
/// while the backward pass is in the experts, and receives results while it is in the mixer; and vice versa. Half of
/// `forward` and `backward`, the seconds of the exchanges, are sent in each direction.
void overlap_exchanges(const PredictionInput& input, const UnitTime& mixer, const ExchangeSeconds& forward,
                       const ExchangeSeconds& backward, UnitTime& experts) {
  const Layout& layout = input.layout;
  const double fraction = combined_fraction(layout.make_schedule(layout.microbatches(input.work.global_batch_size)));
  const bool has_weights = !row_of(layout.schedule).splits_backward;
  const auto backward_seconds = [&](const UnitTime& time) {
    return time.backward_input.total() - time.backward_input.expert_parallel +
           (has_weights ? time.backward_weight.total() : 0);
  };
  const double expert_forward = experts.forward.total() - experts.forward.expert_parallel,
               expert_backward = backward_seconds(experts);
  const auto expose = [&](PassTime& pass, const ExchangeSeconds& exchange, double first_window, double second_window) {
    const double seconds = exchange.overlapped,
                 waits = std::max(0.0, seconds / 2 - first_window) + std::max(0.0, seconds / 2 - second_window);
    const double paired = std::min(
        pass.expert_parallel, exchange.exposed + std::max(input.hardware.communication_slowdown() * seconds, waits));
    pass.expert_parallel += fraction * (paired - pass.expert_parallel);
  };
  expose(experts.forward, forward, expert_backward, backward_seconds(mixer));
  expose(experts.backward_input, backward, mixer.forward.total(),
         expert_forward + (has_weights ? experts.backward_weight.total() : 0));
}

}  // namespace

UnitTime layer_time(const PredictionInput& input, const BlockSpec& block, i64 layer) {
  const RankCostModel rank(input);
  const MemoryPasses launches{input.program.kernels.forward / 2, input.program.kernels.backward / 2};
  UnitTime mixer, feed_forward;
  if (block.has_mixer()) mixer = TraceTime(rank, input.trace(mixer_of(block), layer), launches).time();
  if (block.has_feed_forward()) {
    const BlockTrace& trace = input.trace(feed_forward_of(block), layer);
    TraceTime measured(rank, trace, launches);
    feed_forward = measured.time();
    if (input.layout.overlap_moe_expert_parallel_comm && block.moe())
      overlap_exchanges(input, mixer, measured.exchange_seconds(trace.forward),
                        measured.exchange_seconds(trace.backward), feed_forward);
  }
  mixer += feed_forward;
  return mixer;
}

std::vector<WeightMatmul> forward_matmuls(const PredictionInput& input) {
  std::vector<WeightMatmul> list;
  const auto add = [&](const BlockTrace& trace) {
    for (const OpRecord& op : trace.forward.ops) {
      if (op.weight.empty()) continue;
      const WeightMatmul matmul{short_weight_name(op.weight), op.matmul, gemm_type(input, op)};
      if (std::ranges::find(list, matmul) == list.end()) list.push_back(matmul);
    }
  };
  const BlockKinds& blocks = input.measurements->blocks;
  for (std::size_t kind = 0; kind < blocks.kinds.size(); ++kind)
    for (const BlockSpec& part : {mixer_of(blocks.kinds[kind]), feed_forward_of(blocks.kinds[kind])})
      add(input.trace(part, blocks.first_layers[kind]));
  add(input.output_trace());
  return list;
}

UnitTime embedding_time(const PredictionInput& input) {
  const RankCostModel rank(input);
  const KernelTimes& kernels = rank.kernels();
  UnitTime t;
  t.forward.elementwise = rank.seconds(rank.stream_elements() * kernels.embedding.forward, 1);
  t.backward_weight.elementwise = rank.seconds(rank.stream_elements() * kernels.embedding.backward, 1);
  if (input.layout.tp > 1)
    t.forward.tensor_parallel = rank.collectives().all_reduce(rank.unsharded_bytes(), input.layout.tp_group());
  return t;
}

UnitTime output_time(const PredictionInput& input, const StageContents& stage) {
  if (!stage.has_output_part()) return {};
  const double launches = (stage.has_final_norm ? 1 : 0) + (stage.has_output ? 1 : 0);  // norm and loss
  return TraceTime(RankCostModel(input), input.output_trace(stage), {launches, launches}).time();
}

}  // namespace mcpp

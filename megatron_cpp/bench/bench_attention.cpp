#include "megatron_cpp/bench/bench_attention.h"

#include <cmath>

#include "base/statistics.h"
#include "parallel/cp/context_attention.h"
#include "parallel/cp/sequence_partition.h"
#include "parallel/reduce_scalar.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns, as [s, batch], the start of each token's document; the document lengths repeat cyclically.
std::vector<i32> starts_of_documents(const std::vector<i64>& lengths, i64 seq, i64 batch) {
  std::vector<i32> starts;
  if (lengths.empty()) return starts;
  std::size_t document = 0;
  for (i64 position = 0, start = 0; position < seq; ++position) {
    if (position == start + lengths[document]) start = position, document = (document + 1) % lengths.size();
    starts.insert(starts.end(), static_cast<std::size_t>(batch), static_cast<i32>(start));
  }
  return starts;
}

/// Attention of one layer on this rank, with timings of its runs.
class AttentionRun {
 public:
  AttentionRun(const ModelConfig& config, const AttentionMethod& method, const AttentionBench& bench,
               Communicator& world, Device& device)
      : world_(world),
        device_(device),
        state_(make_parallel_state(world,
                                   {.context_parallel_size = world.size(), .context_parallel_heads = method.heads})),
        cp_(state_.context_parallel(method.comm_type)),
        attention_(cp_, config.num_attention_heads, config.query_groups()) {
    const i64 rows = config.seq_length / cp_.size(), groups = config.query_groups();
    const i64 q_per_group = config.num_attention_heads / groups, dim = config.head_dim();
    qkv_.queries = random_tensor({rows, bench.batch, groups, q_per_group + 2, dim}, bench.dtype, device, 1);
    dout_ = random_tensor({rows, bench.batch, config.num_attention_heads * dim}, bench.dtype, device, 2);
    options_.softmax_scale = 1 / std::sqrt(static_cast<double>(dim));
    const AttentionWork work{.seq_length = config.seq_length,
                             .batch = bench.batch,
                             .starts = starts_of_documents(bench.document_lengths, config.seq_length, bench.batch),
                             .windows = {config.window_of(0)}};
    options_.window = config.window_of(0);
    partition_ = std::make_shared<const SamplePartition>(balance_sequence_partition(cp_.partition, work));
    options_.queries.ranges = options_.keys = partition_->of_rank(cp_.rank);
    if (work.starts.empty()) return;
    const Tensor starts = integers(work.starts, {config.seq_length, bench.batch}, device);
    options_.queries.starts = rows_at(starts, partition_->of_member(cp_.member()), rows * cp_.partition.heads);
  }

  AttentionRow measure(const BenchTiming& timing) {
    for (int i = 0; i < timing.warmup; ++i) run_once();
    forwards_.clear(), backwards_.clear();
    const double exposed_before = exposed();
    const i64 sent_before = sent();
    for (int i = 0; i < timing.repeats; ++i) run_once();
    const double runs = timing.repeats, waited = (exposed() - exposed_before) / runs;
    double all = 0;
    for (std::size_t i = 0; i < forwards_.size(); ++i) all += forwards_[i] + backwards_[i];
    const double computed = all / runs - waited;
    AttentionRow row;
    row.forward_s = slowest(median(forwards_)), row.backward_s = slowest(median(backwards_));
    row.sent_bytes = slowest(static_cast<double>(sent() - sent_before) / runs);
    row.exposed_s = reduce_scalar(waited, ReduceOp::Sum, world_, device_) / world_.size();
    row.balance = slowest(computed) / -slowest(-computed);
    row.runs = partition_->runs();
    return row;
  }

 private:
  void run_once() {
    world_.barrier();
    const CoreAttentionOptions how = attention_.options(options_, partition_);
    ContextAttention::SavedAttention kept;
    forwards_.push_back(seconds_of(device_, [&] {
      kept = attention_.forward(qkv_, how);
      attention_.output(kept, how);
    }));
    backwards_.push_back(seconds_of(device_, [&] { attention_.backward(dout_, kept, how, qkv_.like()); }));
  }
  double exposed() const {
    return state_.meters.at("cp_ring")->exposed_seconds + state_.meters.at("cp_heads")->exposed_seconds;
  }
  i64 sent() const { return state_.meters.at("cp_ring")->total_bytes() + state_.meters.at("cp_heads")->total_bytes(); }
  double slowest(double value) { return reduce_scalar(value, ReduceOp::Max, world_, device_); }

  Communicator& world_;
  Device& device_;
  ParallelState state_;
  ContextParallel cp_;
  ContextAttention attention_;
  std::shared_ptr<const SamplePartition> partition_;
  Qkv qkv_;
  Tensor dout_;
  AttentionOptions options_;
  std::vector<double> forwards_, backwards_;
};

}  // namespace

std::vector<AttentionMethod> attention_methods(const ModelConfig& config, int ranks) {
  if (ranks == 1) return {{"one rank", CpCommType::P2p}};
  std::vector<AttentionMethod> methods{{"p2p", CpCommType::P2p}, {"all_gather", CpCommType::AllGather}};
  for (i64 heads = 2; heads <= ranks; ++heads) {
    if (ranks % heads != 0 || !HeadExchange::is_possible(heads, config.num_attention_heads, config.query_groups()))
      continue;
    if (heads == ranks)
      methods.push_back({"a2a", CpCommType::A2a, heads});
    else
      methods.push_back({str("a2a+p2p ", heads, "x", ranks / heads), CpCommType::A2aP2p, heads});
  }
  return methods;
}

AttentionRow bench_attention(const ModelConfig& config, const AttentionMethod& method, const AttentionBench& bench,
                             Communicator& world, Device& device) {
  AttentionRow row = AttentionRun(config, method, bench, world, device).measure(bench.timing);
  row.method = method;
  return row;
}

}  // namespace mcpp

// Command megatron_cpp bench attention: compares methods of context parallelism (docs/context_parallelism.md) under
// mpirun.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "base/statistics.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "model/config/block_spec.h"
#include "parallel/cp/context_attention.h"
#include "parallel/cp/sequence_partition.h"
#include "parallel/reduce_scalar.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Method of partitioning each sample across ranks.
struct AttentionMethod {
  std::string name;  ///< "p2p", "a2a+p2p 2x4"
  Layout layout;
};
/// Result for one layer's forward and backward pass over one microbatch.
struct AttentionRow {
  AttentionMethod method;
  double forward_s = 0, backward_s = 0;  ///< medians of the slowest rank
  double sent_bytes = 0;                 ///< maximum over ranks
  double exposed_s = 0;                  ///< mean over ranks of the time in exposed communication
  double balance = 1;                    ///< compute time of the slowest rank relative to the fastest
  i64 runs = 1;                          ///< contiguous chunks of each sample on a rank
};

struct AttentionBench {
  i64 batch = 1;
  /// Lengths of packed documents, which do not attend to each other, repeated until a sample is full; empty = one
  /// document per sample.
  std::vector<i64> document_lengths = {};
  DType dtype = DType::F32;
  BenchTiming timing = {};
};

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

/// Attention of one layer on this rank, with the model's heads and seq_length on random queries, keys and values.
class AttentionRun {
 public:
  AttentionRun(const ModelConfig& config, const AttentionMethod& method, const AttentionBench& bench,
               Communicator& world, Device& device)
      : method_(method),
        timing_(bench.timing),
        world_(world),
        device_(device),
        state_(make_parallel_state(world, method.layout)),
        cp_(state_.context_parallel()),
        attention_(cp_, config.num_attention_heads.first(), config.query_groups(0)) {
    const i64 rows = config.seq_length / cp_.size(), groups = config.query_groups(0);
    const i64 q_per_group = config.num_attention_heads.first() / groups, dim = config.head_dim();
    qkv_.queries = random_tensor({rows, bench.batch, groups, q_per_group + 2, dim}, bench.dtype, device, 1);
    dout_ = random_tensor({rows, bench.batch, config.num_attention_heads.first() * dim}, bench.dtype, device, 2);
    options_.softmax_scale = 1 / std::sqrt(static_cast<double>(dim));
    const BlockSpec block = block_spec(config, 0);
    const i64 window = block.attention() ? block.attention()->window : 0;
    const AttentionWork work{.seq_length = config.seq_length,
                             .batch = bench.batch,
                             .starts = starts_of_documents(bench.document_lengths, config.seq_length, bench.batch),
                             .layers = {{.window = window}}};
    options_.window = window;
    partition_ = std::make_shared<const SamplePartition>(balance_sequence_partition(cp_.partition, work));
    options_.queries.ranges = options_.keys = partition_->rank_positions(cp_.rank);
    if (work.starts.empty()) return;
    const Tensor starts = integers(work.starts, {config.seq_length, bench.batch}, device);
    options_.queries.starts =
        select_rows(starts, partition_->member_positions(cp_.member()), rows * cp_.partition.heads);
  }

  AttentionRow measure() {
    for (int i = 0; i < timing_.warmup; ++i) run_once();
    forwards_.clear(), backwards_.clear();
    const double exposed_before = exposed();
    const i64 sent_before = sent();
    for (int i = 0; i < timing_.repeats; ++i) run_once();
    const double runs = timing_.repeats, waited = (exposed() - exposed_before) / runs;
    double all = 0;
    for (std::size_t i = 0; i < forwards_.size(); ++i) all += forwards_[i] + backwards_[i];
    const double computed = all / runs - waited;
    AttentionRow row{.method = method_};
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
    const CoreAttentionOptions attention_options = attention_.make_options({options_, partition_});
    ContextAttention::SavedAttention kept;
    forwards_.push_back(seconds_of(device_, [&] {
      kept = attention_.forward(qkv_, attention_options);
      attention_.output(kept, attention_options);
    }));
    backwards_.push_back(
        seconds_of(device_, [&] { attention_.backward(dout_, kept, attention_options, qkv_.like(), {}); }));
  }
  double exposed() const {
    return state_.meters.at("cp_ring")->exposed_seconds + state_.meters.at("cp_heads")->exposed_seconds;
  }
  i64 sent() const { return state_.meters.at("cp_ring")->total_bytes() + state_.meters.at("cp_heads")->total_bytes(); }
  double slowest(double value) { return reduce_scalar(value, ReduceOp::Max, world_, device_); }

  AttentionMethod method_;
  BenchTiming timing_;
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

/// Returns the methods that support this number of ranks and the heads of the model. For one rank, there is only the
/// method without communication.
std::vector<AttentionMethod> attention_methods(const ModelConfig& config, int ranks) {
  if (ranks == 1) return {{"one rank", {}}};
  std::vector<AttentionMethod> methods{{"p2p", {.cp = ranks}},
                                       {"all_gather", {.cp = ranks, .cp_comm_type = CpCommType::AllGather}}};
  for (i64 heads = 2; heads <= ranks; ++heads) {
    if (ranks % heads != 0 ||
        !HeadExchange::is_possible(heads, config.num_attention_heads.first(), config.query_groups(0)))
      continue;
    if (heads == ranks)
      methods.push_back({"a2a", {.cp = ranks, .cp_comm_type = CpCommType::A2a}});
    else
      methods.push_back({str("a2a+p2p ", heads, "x", ranks / heads),
                         {.cp = ranks, .cp_comm_type = CpCommType::A2aP2p, .cp_hierarchy = {heads, ranks / heads}}});
  }
  return methods;
}

struct BenchAttentionOptions {
  std::string config;
  std::vector<i64> document_length;
  i64 repeats = 5;
  i64 warmup = 1;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML: heads, seq_length, precision, batch and threads");
    visit("document_length", self.document_length,
          "lengths of the documents in packed samples, used in turn, such as 512,4096; attention stays within a "
          "document; empty = one document per sample",
          at_least(1));
    visit("repeats", self.repeats, "timed runs; the median is reported", between(1, 1e6));
    visit("warmup", self.warmup, "untimed runs before the timed ones", between(0, 1e6));
    visit("json", self.json, "print one JSON object instead of a table");
  }
};

/// Reduces the heads to the share of one of `tp` tensor-parallel ranks, which attend independently.
void shard_heads(ModelConfig& model, i64 tp) {
  check_input(model.num_attention_heads.first() % tp == 0, "parallel.tensor_model_parallel_size = ", tp,
              " does not divide model.num_attention_heads = ", model.num_attention_heads.first());
  model.kv_channels = model.head_dim();
  model.num_query_groups = std::max<i64>(model.query_groups(0) / tp, 1);
  model.num_attention_heads = model.num_attention_heads.first() / tp;
}

std::string table(const std::vector<AttentionRow>& rows) {
  std::string text =
      str(pad_right("", 14), pad_left("forward ms", 12), pad_left("backward ms", 13), pad_left("sent MiB", 10),
          pad_left("waiting ms", 12), pad_left("balance", 9), pad_left("chunks", 8), "\n");
  for (const AttentionRow& row : rows) {
    text += str(pad_right(row.method.name, 14), pad_left(fixed(row.forward_s * 1e3, 2), 12),
                pad_left(fixed(row.backward_s * 1e3, 2), 13), pad_left(fixed(row.sent_bytes / (1 << 20), 2), 10),
                pad_left(fixed(row.exposed_s * 1e3, 2), 12), pad_left(fixed(row.balance, 3), 9),
                pad_left(str(row.runs), 8), "\n");
  }
  return text;
}

nlohmann::ordered_json as_json(const std::vector<AttentionRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const AttentionRow& row : rows) {
    list.push_back({{"way", row.method.name},
                    {"forward_s", row.forward_s},
                    {"backward_s", row.backward_s},
                    {"sent_bytes", row.sent_bytes},
                    {"exposed_s", row.exposed_s},
                    {"balance", row.balance},
                    {"chunks", row.runs}});
  }
  return list;
}

}  // namespace

ExitCode bench_attention_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "[mpirun -n N] megatron_cpp bench attention",
                    .summary =
                        "Times the attention of one layer over a sample partitioned across all ranks, with each method "
                        "(parallel.cp_comm_type) that supports this number of ranks. The number of heads is that of "
                        "one tensor-parallel rank.",
                    .positional = {"config"},
                    .required = {"config"}};
  BenchAttentionOptions options;
  const std::optional<Config> read = read_config_and_options(args, usage, options, log);
  if (!read) return ExitCode::Done;
  Config config = *read;
  const i64 tp = read->parallel.tp, cp = read->parallel.cp;
  check_input(cp == 1 || cp == world.ranks.size(), "parallel.context_parallel_size = ", cp, ", but ",
              world.ranks.size(), world.ranks.size() == 1 ? " rank was" : " ranks were",
              " started, and each needs a part of every sample; start ", cp, ", or remove the key");
  config.parallel = {};
  shard_heads(config.model, tp);
  config.parallel.distributed_backend = read->parallel.distributed_backend;
  config.parallel.distributed_timeout_minutes = read->parallel.distributed_timeout_minutes;
  config.parallel.cp = world.ranks.size();
  config.training.global_batch_size = config.training.micro_batch_size;
  config.training.step_batch_size_schedule = {};
  Session session = initialize(config, world);
  const AttentionBench bench{
      .batch = config.training.micro_batch_size,
      .document_lengths = options.document_length,
      .dtype = dtype_of(config.training.precision),
      .timing = {.warmup = static_cast<int>(options.warmup), .repeats = static_cast<int>(options.repeats)}};
  std::vector<AttentionRow> rows;
  for (const AttentionMethod& method : attention_methods(config.model, world.ranks.size()))
    rows.push_back(AttentionRun(config.model, method, bench, session.parallel.world, *session.device).measure());
  log_device_warnings(*session.device, log);
  if (options.json)
    log.info(nlohmann::ordered_json{{"ranks", world.ranks.size()},
                                    {"dtype", name_of(bench.dtype)},
                                    {"seq_length", config.model.seq_length},
                                    {"batch", bench.batch},
                                    {"document_length", options.document_length},
                                    {"rows", as_json(rows)}}
                 .dump());
  else
    log.info(str(world.ranks.size(), world.ranks.size() == 1 ? " rank, " : " ranks, ", config.model.seq_length,
                 " tokens, ", config.model.num_attention_heads.first(), " heads of ", config.model.head_dim(), ", ",
                 name_of(bench.dtype), "\n", table(rows)));
  return ExitCode::Done;
}

}  // namespace mcpp

// Command megatron_cpp bench attention: compares context-parallel methods under mpirun.
#include "megatron_cpp/bench/bench_attention.h"

#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "megatron_cpp/commands/bench/bench_commands.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/options.h"
#include "megatron_cpp/monitor/device_warnings.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

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
          "lengths of the documents that samples are packed from, used in turn, such as 512,4096; attention stays "
          "within a document; empty = one document per sample",
          at_least(1));
    visit("repeats", self.repeats, "timed runs; the median is reported", between(1, 1e6));
    visit("warmup", self.warmup, "untimed runs before them", between(0, 1e6));
    visit("json", self.json, "print one JSON object instead of a table");
  }
};

/// Reduces the heads to those of one of `tp` tensor-parallel ranks, which attend independently.
void shard_heads(ModelConfig& model, i64 tp) {
  check_input(model.num_attention_heads % tp == 0, "parallel.tensor_model_parallel_size = ", tp,
              " does not divide model.num_attention_heads = ", model.num_attention_heads);
  model.kv_channels = model.head_dim();
  model.num_query_groups = std::max<i64>(model.query_groups() / tp, 1);
  model.num_attention_heads /= tp;
}

std::string table(const std::vector<AttentionRow>& rows) {
  std::string text =
      str(pad_right("", 14), pad_left("forward ms", 12), pad_left("backward ms", 13), pad_left("sent MiB", 10),
          pad_left("waiting ms", 12), pad_left("balance", 9), pad_left("pieces", 8), "\n");
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
                    {"pieces", row.runs}});
  }
  return list;
}

}  // namespace

ExitCode bench_attention_command(Arguments args, Log& log, const World& world) {
  const Usage usage{
      .command = "[mpirun -n N] megatron_cpp bench attention",
      .summary =
          "Times one layer's attention over a sample that all ranks share, with each method (parallel.cp_comm_type) "
          "that supports this number of ranks, for the heads of one rank of parallel.tensor_model_parallel_size.",
      .positional = {"config"},
      .required = {"config"}};
  BenchAttentionOptions options;
  const std::optional<Config> read = read_config_and_options(args, usage, options, log);
  if (!read) return ExitCode::Done;
  Config config = *read;
  const i64 tp = read->parallel.tensor_model_parallel_size, cp = read->parallel.context_parallel_size;
  check_input(cp == 1 || cp == world.ranks.size(), "parallel.context_parallel_size = ", cp, ", but ",
              world.ranks.size(), world.ranks.size() == 1 ? " rank was" : " ranks were",
              " started, and each of them needs a part of a sample: start ", cp, ", or leave the key out");
  config.parallel = {};
  shard_heads(config.model, tp);
  config.parallel.distributed_backend = read->parallel.distributed_backend;
  config.parallel.distributed_timeout_minutes = read->parallel.distributed_timeout_minutes;
  config.parallel.context_parallel_size = world.ranks.size();
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
    rows.push_back(bench_attention(config.model, method, bench, session.parallel.world, *session.device));
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
                 " tokens, ", config.model.num_attention_heads, " heads of ", config.model.head_dim(), ", ",
                 name_of(bench.dtype), "\n", table(rows)));
  return ExitCode::Done;
}

}  // namespace mcpp

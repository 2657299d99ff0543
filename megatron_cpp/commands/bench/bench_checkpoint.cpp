// Command megatron_cpp bench checkpoint: compares saving and loading a training state with plain writes and reads.
#include "megatron_cpp/bench/bench_checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "checkpoint/directory/lock.h"
#include "megatron_cpp/commands/bench/bench_commands.h"
#include "megatron_cpp/setup/datasets/vocabulary.h"
#include "megatron_cpp/setup/model_provider.h"

namespace mcpp {
namespace {

struct BenchCheckpointOptions {
  std::string config;
  std::string folder;
  i64 rounds = 3;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML: the model, precision and layout whose state is saved");
    visit("folder", self.folder, "an empty folder on the disk to measure");
    visit("rounds", self.rounds, "repetitions of every measurement", between(1, 1e6));
    visit("json", self.json, "print one JSON object per round instead of a table");
  }
};

std::string table(const CheckpointTimes& t, double bytes) {
  const auto time = [](const char* name, double seconds) {
    return str(pad_right(name, 32), pad_left(fixed(seconds, 3), 10), "\n");
  };
  const auto line = [&](const char* name, double seconds) {
    return str(pad_right(name, 32), pad_left(fixed(seconds, 3), 10), pad_left(fixed(bytes / seconds / 1e6, 0), 8),
               "\n");
  };
  return str(pad_right("", 32), pad_left("seconds", 10), pad_left("MB/s", 8), "\n", line("plain write", t.plain_write),
             line("save", t.save), time("step", t.async.step), time("step during a save", t.async.step_with_save),
             time("stall of the first such save", t.async.first_stall), time("stall of a later one", t.async.stall),
             time("  from begin to end", t.async.total), line("plain read", t.plain_read),
             line("the same past the page cache", t.direct_read), line("load", t.load), line("verify", t.verify));
}

std::string as_json(const CheckpointTimes& t, double bytes, int ranks) {
  return nlohmann::ordered_json{{"ranks", ranks},
                                {"bytes", bytes},
                                {"plain_write_s", t.plain_write},
                                {"save_s", t.save},
                                {"step_s", t.async.step},
                                {"step_beside_save_s", t.async.step_with_save},
                                {"async_first_stall_s", t.async.first_stall},
                                {"async_stall_s", t.async.stall},
                                {"async_total_s", t.async.total},
                                {"plain_read_s", t.plain_read},
                                {"direct_read_s", t.direct_read},
                                {"load_s", t.load},
                                {"verify_s", t.verify}}
      .dump();
}

}  // namespace

ExitCode bench_checkpoint_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp bench checkpoint",
                    .summary = "Times saves and loads in alternation with plain writes and reads of the same bytes.",
                    .positional = {"config", "folder"},
                    .required = {"config", "folder"}};
  BenchCheckpointOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  resolve_vocabulary(*config, log);
  const Path folder = options.folder;
  mcpp::create_directories(folder);
  check_input(std::filesystem::is_empty(folder), folder.string(), " is not empty: bench checkpoint clears its folder");
  Session session = initialize(*config, world);
  TrainingState state(model_provider(*config, session), config->optimizer, layout_provider(*config, session));
  const auto bytes = static_cast<double>(checkpoint_bytes(state, session));
  for (i64 round = 0; round < options.rounds; ++round) {
    const CheckpointTimes times = bench_checkpoint(*config, state, session, folder, log);
    log.info(options.json ? as_json(times, bytes, world.ranks.size()) : table(times, bytes));
  }
  return ExitCode::Done;
}

}  // namespace mcpp

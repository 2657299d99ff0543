// Command megatron_cpp bench checkpoint: compares saving and loading a training state with plain writes and reads.
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "base/number_format.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/format/block_io.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/async_save.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/resume/checkpoint_saver.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/step/training_shards.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

/// Seconds on the slowest rank.
struct AsyncSaveTimes {
  double step = 0;            ///< time per step without a save
  double step_with_save = 0;  ///< mean over the steps that start with a save in flight
  /// Total time that the training thread is blocked by the first save, which allocates its copy in host memory:
  /// starting it, copying, and synchronizing ranks after a step.
  double first_stall = 0;
  double stall = 0;  ///< like first_stall, for a later save
  double total = 0;  ///< duration of the later save until the training thread detects its end
};

/// Seconds on the slowest rank.
struct CheckpointTimes {
  double plain_write = 0;  ///< write of each rank's bytes to its own file, flushed to disk
  double save = 0;         ///< synchronous save of a complete checkpoint
  AsyncSaveTimes async;
  double plain_read = 0;   ///< read of the plain files with a cold page cache
  double direct_read = 0;  ///< like plain_read, but bypassing the page cache if supported: lower bound for a load
  double load = 0;         ///< finding, verifying and loading the checkpoint with a cold page cache
  double verify = 0;
};

double measure_seconds(const std::function<void()>& f) {
  const double start = steady_seconds();
  f();
  return steady_seconds() - start;
}

Config saving_in(const Path& folder, Config config) {
  config.checkpoint = {};
  config.logging = {};
  config.checkpoint.save = folder.string();
  config.checkpoint.save_interval = 1;
  config.checkpoint.keep_latest_k = 1;
  config.checkpoint.async_save = true;
  return config;
}

/// Training steps with asynchronous saves, like Trainer but waiting for the outcome of each step.
class AsyncSaveBench {
 public:
  AsyncSaveBench(const Config& config, TrainingState& state, Session& session, const Path& folder)
      : config_(saving_in(folder, config)),
        state_(state),
        session_(session),
        batches_(static_cast<std::size_t>(microbatches_per_step(config, session.parallel.world.size())),
                 random_batch(model_provider(config, session), config.training.micro_batch_size)),
        logger_(config_, session, quiet_),
        saver_({.config = config_, .session = session, .log = quiet_, .logger = logger_}, state, {}, /*sources=*/{}) {}

  AsyncSaveTimes run() {
    constexpr int kSteps = 2;
    AsyncSaveTimes times;
    for (int i = 0; i < kSteps; ++i) step();  // memory for the saves is prepared concurrently
    for (int i = 0; i < kSteps; ++i) times.step += max_over_ranks(measure_seconds([&] { step(); })) / kSteps;
    times.first_stall = save(2).stall;
    const Save later = save(3);
    times.stall = later.stall;
    times.step_with_save = later.step;
    times.total = later.total;
    return times;
  }

 private:
  struct Save {
    double stall, step, total;
  };

  /// Starts a save and trains until it has finished.
  Save save(i64 iteration) {
    stall_ = 0;
    double in_steps = 0, steps = 0;
    const double total = measure_seconds([&] {
      stall_ += measure_seconds([&] { saver_.save({.iteration = iteration}, {}); });
      for (; saver_.is_in_flight(); ++steps) in_steps += measure_seconds([&] { step(); });
    });
    return {.stall = max_over_ranks(stall_), .step = max_over_ranks(in_steps / steps), .total = max_over_ranks(total)};
  }

  void step() {
    state_.backward(batches_);
    stall_ += measure_seconds([&] { saver_.wait_for_copy(); });
    state_.update({.lr = config_.optimizer.lr, .weight_decay = config_.optimizer.weight_decay});
    state_.outcome();
    stall_ += measure_seconds([&] { saver_.poll(); });
  }

  double max_over_ranks(double value) {
    return reduce_scalar(value, ReduceOp::Max, session_.parallel.world, *session_.device);
  }

  const Config config_;
  TrainingState& state_;
  Session& session_;
  const Log quiet_{session_.parallel.world.rank() + 1};  // never rank 0, whose log lines would mix with the results
  const std::vector<MicroBatch> batches_;
  TrainingLogger logger_;  // writes nothing, because its sinks are not opened
  CheckpointSaver saver_;
  double stall_ = 0;
};

/// One round of the benchmark. Writes to `folder`, which is left empty. Collective over the session's ranks.
class CheckpointBench {
 public:
  CheckpointBench(const Config& config, TrainingState& state, Session& session, const Path& folder, const Log& log)
      : config_(config), state_(state), session_(session), world_(session.parallel.world), folder_(folder), log_(log) {}

  CheckpointTimes run() {
    CheckpointTimes times;
    write_plain();
    times.plain_write = measure_without_cache([&] { write_plain(); });
    times.save = measure_without_cache([&] { save(); });
    times.async = AsyncSaveBench(config_, state_, session_, folder_).run();
    evict();
    read_plain();
    times.plain_read = measure_without_cache([&] { read_plain(); });
    times.direct_read = measure_without_cache([&] { read_direct(); });
    times.load = measure_without_cache([&] { load(); });
    times.verify = measure_without_cache([&] { verify(); });
    world_.barrier();
    if (world_.rank() == 0) clear();
    world_.barrier();
    return times;
  }

 private:
  /// Times f on the slowest rank with all files evicted from the page cache. Each run thus reuses the pages freed by
  /// the previous one (the first run is not timed), and none pays for memory that the host of a virtual machine had
  /// reclaimed, which would take several times longer than the disk.
  double measure_without_cache(const std::function<void()>& f) {
    evict();
    return reduce_scalar(measure_seconds(f), ReduceOp::Max, world_, *session_.device);
  }

  Path plain_file() const { return folder_ / str("plain_", world_.rank()); }

  void write_plain() {
    const std::vector<NamedShard> shards = shards_to_save(state_);
    HostCopies source(shards);
    AtomicFile file(plain_file());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const Tensor data = source.data(i);
      file.write({static_cast<const std::byte*>(data.raw()), static_cast<std::size_t>(data.bytes())});
    }
    file.commit();
  }

  void save() {
    const std::vector<NamedShard> shards = shards_to_save(state_);
    HostCopies source(shards);
    save_checkpoint(folder_, run_state(config_, state_, {.iteration = 1}), source, world_, log_);
  }

  void read_plain() const {
    const InputFile file(plain_file());
    std::vector<std::byte> chunk(std::size_t{1} << 23);
    const auto size = static_cast<i64>(fs::file_size(plain_file()));
    for (i64 at = 0; at < size; at += static_cast<i64>(chunk.size())) {
      const i64 count = std::min(size - at, static_cast<i64>(chunk.size()));
      file.read(at, std::span(chunk).first(static_cast<std::size_t>(count)));
    }
  }

  /// Reads as a load does, without processing.
  void read_direct() const {
    const InputFile file(plain_file());
    const auto size = static_cast<i64>(fs::file_size(plain_file()));
    BlockReader reader;
    reader.declare(file, 0, size, ReadMode::Direct);
    for (i64 at = 0; at < size;) at += static_cast<i64>(reader.at(file, at, BlockReader::kChunkBytes).size());
  }

  static void expect_sound(const std::optional<Damage>& damage) {
    if (damage) fail(ExitCode::BadInput, damage->text);
  }

  /// Loads as a restarted run does.
  void load() {
    const Path newest = load_candidates(folder_, world_).at(0);
    expect_sound(find_damage(newest, world_));
    CheckpointReader reader(newest);
    std::vector<NamedShard> shards = shards_to_load(state_);
    expect_sound(reader.load(shards, {world_, *session_.node}));
    state_.publish_weights();
  }

  void verify() {
    const Path newest = load_candidates(folder_, world_).at(0);
    expect_sound(find_damage(newest, world_, /*should_verify_checksums=*/true));
  }

  /// Evicts the content of all files, which is on disk already, from the page cache.
  void evict() {
    world_.barrier();
    if (world_.rank() != 0) return world_.barrier();
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0) continue;
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      ::close(file);
    }
    world_.barrier();
  }

  void clear() const {
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
  }

  const Config& config_;
  TrainingState& state_;
  Session& session_;
  Communicator& world_;
  const Path folder_;
  const Log& log_;
};

/// Returns the bytes of one checkpoint of all ranks.
i64 checkpoint_bytes(const TrainingState& state, Session& session) {
  double bytes = 0;
  for (const NamedShard& shard : shards_to_save(state)) bytes += static_cast<double>(shard.data.bytes());
  return static_cast<i64>(reduce_scalar(bytes, ReduceOp::Sum, session.parallel.world, *session.device));
}

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
             time("stall of the first async save", t.async.first_stall), time("stall of a later save", t.async.stall),
             time("  from begin to end", t.async.total), line("plain read", t.plain_read),
             line("read bypassing the page cache", t.direct_read), line("load", t.load), line("verify", t.verify));
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
  TrainingState state(model_provider(*config, session), config->optimizer, session.parallel,
                      storage_provider(*config, session));
  const auto bytes = static_cast<double>(checkpoint_bytes(state, session));
  for (i64 round = 0; round < options.rounds; ++round) {
    const CheckpointTimes times = CheckpointBench(*config, state, session, folder, log).run();
    log.info(options.json ? as_json(times, bytes, world.ranks.size()) : table(times, bytes));
  }
  return ExitCode::Done;
}

}  // namespace mcpp

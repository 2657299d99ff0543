#include "megatron_cpp/bench/bench_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>

#include "checkpoint/directory/folder.h"
#include "checkpoint/format/block_reader.h"
#include "checkpoint/format/input_file.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/async_save.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/step/training_shards.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

class CheckpointBench {
 public:
  CheckpointBench(const Config& config, TrainingState& state, Session& session, const Path& folder, const Log& log)
      : config_(config), state_(state), session_(session), world_(session.parallel.world), folder_(folder), log_(log) {}

  CheckpointTimes run() {
    CheckpointTimes times;
    write_plain();
    times.plain_write = timed_without_cache([&] { write_plain(); });
    times.save = timed_without_cache([&] { save(); });
    times.async = bench_async_save(config_, state_, session_, folder_);
    evict();
    read_plain();
    times.plain_read = timed_without_cache([&] { read_plain(); });
    times.direct_read = timed_without_cache([&] { read_direct(); });
    times.load = timed_without_cache([&] { load(); });
    times.verify = timed_without_cache([&] { verify(); });
    world_.barrier();
    if (world_.rank() == 0) clear();
    world_.barrier();
    return times;
  }

 private:
  /// Times f on the slowest rank with all files evicted from the page cache. Each run thus reuses the pages freed by
  /// the previous one (the first run is not timed), and none pays for memory that the host of a virtual machine had
  /// reclaimed, which would take several times longer than the disk.
  double timed_without_cache(const std::function<void()>& f) {
    evict();
    const auto start = std::chrono::steady_clock::now();
    f();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return reduce_scalar(seconds, ReduceOp::Max, world_, *session_.device);
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
    std::vector<std::byte> piece(std::size_t{1} << 23);
    const auto size = static_cast<i64>(fs::file_size(plain_file()));
    for (i64 at = 0; at < size; at += static_cast<i64>(piece.size())) {
      const i64 count = std::min(size - at, static_cast<i64>(piece.size()));
      file.read(at, std::span(piece).first(static_cast<std::size_t>(count)));
    }
  }

  /// Reads as a load does, without processing.
  void read_direct() const {
    const InputFile file(plain_file());
    const auto size = static_cast<i64>(fs::file_size(plain_file()));
    BlockReader reader;
    reader.declare(file, 0, size, ReadMode::Direct);
    for (i64 at = 0; at < size;) at += static_cast<i64>(reader.at(file, at, BlockReader::kPieceBytes).size());
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
    expect_sound(find_damage(newest, world_, /*checksums=*/true));
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

}  // namespace

CheckpointTimes bench_checkpoint(const Config& config, TrainingState& state, Session& session, const Path& folder,
                                 const Log& log) {
  return CheckpointBench(config, state, session, folder, log).run();
}

i64 checkpoint_bytes(const TrainingState& state, Session& session) {
  double bytes = 0;
  for (const NamedShard& shard : shards_to_save(state)) bytes += static_cast<double>(shard.data.bytes());
  return static_cast<i64>(reduce_scalar(bytes, ReduceOp::Sum, session.parallel.world, *session.device));
}

}  // namespace mcpp

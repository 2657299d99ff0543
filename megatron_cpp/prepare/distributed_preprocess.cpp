#include "megatron_cpp/prepare/distributed_preprocess.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/object_store/stored_file.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "data/preprocess/distributed/part_assembler.h"
#include "data/preprocess/distributed/part_writer.h"
#include "data/preprocess/distributed/parts_folder.h"
#include "data/preprocess/input_files.h"

namespace mcpp {
namespace {

/// Interval between exchanges while all ranks have work, and while one has none.
constexpr std::chrono::milliseconds kExchangeInterval{50}, kShortExchangeInterval{5};
/// Chunks held by a rank: the current chunk and the next one, so that the rank need not wait for an exchange.
constexpr i64 kMaxHeldChunks = 2;

/// Updates that a rank has not sent yet.
struct PendingUpdates {
  std::vector<WorkUpdate> updates;
  std::vector<i64> ended;
};

/// Runs chunks in sequence on a thread, and their final phases on a second one.
class Worker {
 public:
  explicit Worker(const ChunkFn& work)
      : work_(work),
        worker_([this](const std::stop_token& stop) { run_until_failure([&] { run_chunks(stop); }); }),
        finalizer_([this](const std::stop_token& stop) { run_until_failure([&] { run_finalizers(stop); }); }) {}

  void assign(i64 chunk) {
    {
      const std::lock_guard lock(mutex_);
      chunks_.push_back(chunk);
      ++assigned_;
    }
    changed_.notify_all();
  }
  /// Waits for `time` or until an error occurs.
  void wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return error_ != nullptr; });
  }
  /// Returns the number of chunks that were assigned and whose work (except for the final phase) is not done.
  i64 num_held() {
    const std::lock_guard lock(mutex_);
    return assigned_ - processed_;
  }
  double amount() const { return amount_; }
  /// Returns the updates since the last call.
  PendingUpdates take_updates() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }
  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  /// Rethrows the worker's error, if any.
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  void stop() {
    worker_.request_stop();
    finalizer_.request_stop();
  }

 private:
  struct Stopped {};

  void run_chunks(const std::stop_token& stop) {
    while (const std::optional<i64> chunk = take(chunks_, stop)) {
      ProcessedChunk processed = work_(*chunk, [&](double amount) {
        amount_ = amount_ + amount;
        if (stop.stop_requested()) throw Stopped();
      });
      const std::lock_guard lock(mutex_);
      ++processed_;
      pending_.updates.push_back({.chunk = *chunk, .rank = 0, .text = std::move(processed.text)});
      ends_.push_back({*chunk, std::move(processed.end)});
      changed_.notify_all();
    }
  }
  void run_finalizers(const std::stop_token& stop) {
    while (const auto chunk = take(ends_, stop)) {
      chunk->second(stop);
      const std::lock_guard lock(mutex_);
      pending_.ended.push_back(chunk->first);
    }
  }
  /// Removes the next element of a queue; returns std::nullopt if the thread should stop.
  template <class T>
  std::optional<T> take(std::deque<T>& queue, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop, [&] { return error_ || !queue.empty(); });
    if (stop.stop_requested() || error_) return std::nullopt;
    T next = std::move(queue.front());
    queue.pop_front();
    return next;
  }
  void run_until_failure(const std::function<void()>& f) {
    try {
      f();
    } catch (const Stopped&) {
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  const ChunkFn& work_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<i64> chunks_;
  std::deque<std::pair<i64, FinalizeFn>> ends_;
  PendingUpdates pending_;
  std::exception_ptr error_;
  i64 assigned_ = 0, processed_ = 0;
  std::atomic<double> amount_ = 0;
  std::jthread worker_, finalizer_;  // last members: use all of the above
};

/// Fixed-size state that the ranks exchange.
struct RankState {
  double num_held = 0, pending = 0, amount = 0, has_failed = 0;
};

std::vector<RankState> gather(const RankState& local, Communicator& ranks) {
  CpuDevice host;
  constexpr i64 kNumValues = sizeof(RankState) / sizeof(double);
  Tensor encoded = Tensor::empty({kNumValues}, DType::F64, host, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumValues * ranks.size()}, DType::F64, host, MemoryClass::Other);
  std::memcpy(encoded.raw(), &local, sizeof(local));
  ranks.all_gather(encoded, all).wait();
  std::vector<RankState> states(static_cast<std::size_t>(ranks.size()));
  std::memcpy(states.data(), all.raw(), states.size() * sizeof(RankState));
  return states;
}

/// Gathers the updates of all ranks on all ranks.
PendingUpdates exchange(const PendingUpdates& local, Communicator& ranks) {
  Json encoded{{"updates", Json::array()}, {"ended", local.ended}};
  for (const WorkUpdate& update : local.updates) encoded["updates"].push_back({update.chunk, update.text});
  const std::vector<std::string> texts =
      all_gather_strings(encoded.dump(-1, ' ', false, Json::error_handler_t::replace), ranks);
  PendingUpdates all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json pending = Json::parse(texts[rank]);
    for (const Json& update : pending["updates"])
      all.updates.push_back({.chunk = update[0], .rank = static_cast<int>(rank), .text = update[1]});
    for (const Json& chunk : pending["ended"]) all.ended.push_back(chunk);
  }
  return all;
}

/// Assigns chunks to ranks. All ranks compute identical assignments.
class ChunkScheduler {
 public:
  ChunkScheduler(i64 chunks, int ranks) : chunks_(chunks), ranks_(ranks) {}

  /// Assigns one chunk to each idle rank, then a second one to each. The last chunks are reserved for the ranks that
  /// finish first.
  std::vector<i64> assign_chunks(const std::vector<RankState>& states, int rank) {
    std::vector<i64> local;
    for (i64 have = 0; have < kMaxHeldChunks; ++have) {
      for (int to = 0; to < ranks_ && next_ < chunks_; ++to) {
        if (have > 0 && chunks_ - next_ < ranks_) return local;
        if (states[static_cast<std::size_t>(to)].num_held > static_cast<double>(have)) continue;
        if (to == rank) local.push_back(next_);
        ++next_;
      }
    }
    return local;
  }

 private:
  i64 chunks_, next_ = 0;
  int ranks_;
};

/// Stops all ranks. The other ranks are notified of the failure at the next exchange.
void throw_on_all(Worker& worker, Communicator& ranks) {
  worker.stop();
  run_on_all_ranks(ranks, [&] { worker.rethrow(); });
}

}  // namespace

void distribute_work(Communicator& ranks, i64 chunks, const ChunkFn& work,
                     const std::function<void(const WorkProgress&)>& progress) {
  Worker worker(work);
  ChunkScheduler scheduler(chunks, ranks.size());
  WorkProgress all;
  for (std::chrono::milliseconds interval{0}; all.chunks < chunks;) {
    worker.wait(interval);
    const PendingUpdates local = worker.take_updates();
    const std::vector<RankState> states =
        gather({.num_held = static_cast<double>(worker.num_held()),
                .pending = static_cast<double>(local.updates.size() + local.ended.size()),
                .amount = worker.amount(),
                .has_failed = worker.has_failed() ? 1.0 : 0.0},
               ranks);
    const auto any = [&](double RankState::*what) {
      return std::ranges::any_of(states, [&](const RankState& state) { return state.*what != 0; });
    };
    if (any(&RankState::has_failed)) throw_on_all(worker, ranks);
    for (const i64 chunk : scheduler.assign_chunks(states, ranks.rank())) worker.assign(chunk);
    const bool all_work = std::ranges::all_of(states, [](const RankState& state) { return state.num_held > 0; });
    interval = all_work ? kExchangeInterval : kShortExchangeInterval;
    PendingUpdates pending = any(&RankState::pending) ? exchange(local, ranks) : PendingUpdates();
    all.updates = std::move(pending.updates);
    all.ended = std::move(pending.ended);
    all.chunks += std::ssize(all.ended);
    all.amount = 0;
    for (const RankState& state : states) all.amount += state.amount;
    progress(all);
  }
}

namespace {

std::string as_text(const std::vector<WorkUnit>& units) {
  Json list = Json::array();
  for (const WorkUnit& unit : units) {
    const TextRange& range = unit.range;
    list.push_back({unit.path.string(), unit.file_stamp, unit.bytes, unit.before, range.begin, range.end,
                    range.begins_document, range.ends_document, unit.is_json_lines});
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<WorkUnit> units_of(const std::string& text) {
  std::vector<WorkUnit> units;
  for (const Json& entry : Json::parse(text)) {
    WorkUnit& unit = units.emplace_back();
    unit.path = entry[0].get<std::string>();
    unit.file_stamp = entry[1];
    unit.bytes = entry[2];
    unit.before = entry[3];
    unit.is_json_lines = entry[8];
    unit.range = {.begin = entry[4], .end = entry[5], .begins_document = entry[6], .ends_document = entry[7]};
  }
  return units;
}

/// State of one preprocess_in_parts() call on one rank.
class DistributedPreprocess {
 public:
  DistributedPreprocess(const PreprocessOptions& options, i64 workers, Communicator& ranks, const Log& log)
      : options_(options),
        workers_(workers),
        ranks_(ranks),
        log_(log),
        units_(units_of(broadcast_from_rank0(ranks, [&] { return plan(); }))),
        tokenizer_(Path(options.tokenizer_model)),
        folder_(options, keys()),
        placement_(folder_, units_) {}

  PreprocessResult run() {
    open_folder();
    run_on_all_ranks(ranks_, [&] {
      writer_.emplace(folder_);
      if (ranks_.rank() == 0) assembly_.emplace(folder_, units_);
    });
    make_parts(unfinished_units());
    PreprocessResult result = finish();
    run_on_rank0(ranks_, [&] { folder_.remove(); });
    result.seconds = seconds();
    return result;
  }

 private:
  std::string plan() const {
    check_preprocess_options(options_);
    const std::vector<std::string> files = expand_patterns(options_.input);
    u64 bytes = 0;
    for (const std::string& file : files) bytes += static_cast<u64>(stored_file_bytes(file).value_or(0));
    return as_text(make_work_units(files, options_.format(), choose_unit_bytes(bytes)));
  }

  std::vector<std::string> keys() const {
    std::vector<bool> are_json_lines;
    for (const WorkUnit& unit : units_) are_json_lines.push_back(unit.is_json_lines);
    return output_keys(options_, are_json_lines);
  }

  void open_folder() const {
    run_on_rank0(ranks_, [&] {
      folder_.remove_leftovers();
      folder_.open(tokenizer_);
      warn_of_early_ends(ChunkTokenizer(options_.format(), options_.conversation(), tokenizer_), log_);
    });
    run_on_all_ranks(ranks_, [&] {
      check_input(folder_.exists(), folder_.path().string(),
                  ": does not exist on this rank; all ranks must see the same folder, as on a shared file system");
      folder_.open(tokenizer_);
    });
  }

  /// Returns the units whose tokens have not been written yet.
  std::vector<i64> unfinished_units() {
    const std::string notes = broadcast_from_rank0(ranks_, [&] {
      Json list = Json::array();
      const std::vector<std::optional<PartMetadata>> kept = folder_.retain_parts(units_);
      for (std::size_t i = 0; i < units_.size(); ++i)
        list.push_back(kept[i] ? serialize_metadata(units_[i], folder_.keys(), *kept[i]) : "");
      return list.dump();
    });
    std::vector<i64> left;
    const auto note_of = Json::parse(notes).get<std::vector<std::string>>();
    std::size_t num_finished = 0;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      PartMetadata metadata;
      if (!note_of[i].empty()) metadata = parse_metadata(units_[i], folder_.keys(), note_of[i], folder_.path());
      num_finished += !note_of[i].empty();
      if (metadata.output_ranges.empty()) {
        left.push_back(static_cast<i64>(i));
        continue;
      }
      placement_.add(i, std::move(metadata));
      if (assembly_) assembly_->add(i);
    }
    if (num_finished > 0)
      log_.info(str(folder_.path().string(), ": ", num_finished, " of ", units_.size(), " parts already exist"));
    return left;
  }

  /// Tokenizes a unit on a thread of this rank. The tokens are written once the sizes of all earlier units are known.
  ProcessedChunk process_unit(std::size_t index, const std::function<void(double)>& add) {
    if (assembly_) assembly_->check();
    const WorkUnit& unit = units_[index];
    i64 before = 0;
    std::shared_ptr<UnitTokens> tokens = tokenize_unit(folder_, unit, tokenizer_, workers_, memory_, [&](i64 bytes) {
      add(static_cast<double>(bytes - std::exchange(before, bytes)));
    });
    return {.text = serialize_metadata(unit, folder_.keys(), tokens->part().metadata),
            .end = [this, index, tokens = std::move(tokens)](const std::stop_token& stop) mutable {
              const auto output_ranges = placement_.wait_for(index, stop);
              if (!output_ranges) return;
              const TokenMemory::WriteScope writing(memory_);
              writer_->write(*tokens, *output_ranges);
              tokens.reset();
            }};
  }

  void make_parts(const std::vector<i64>& left) {
    u64 total = 0;
    const auto unit_of = [&](i64 chunk) { return static_cast<std::size_t>(left[static_cast<std::size_t>(chunk)]); };
    for (const i64 index : left) total += static_cast<u64>(units_[static_cast<std::size_t>(index)].bytes);
    distribute_work(
        ranks_, std::ssize(left),
        [&](i64 chunk, const std::function<void(double)>& add) { return process_unit(unit_of(chunk), add); },
        [&](const WorkProgress& done) {
          for (const WorkUpdate& update : done.updates) {
            const std::size_t unit = unit_of(update.chunk);
            placement_.add(unit, parse_metadata(units_[unit], folder_.keys(), update.text, folder_.path()));
          }
          if (assembly_)
            for (const i64 chunk : done.ended) assembly_->add(unit_of(chunk));
          if (!log_.is_live() || seconds() < next_log_time_) return;
          next_log_time_ = seconds() + static_cast<double>(options_.log_interval);
          log_.progress(str("preprocess ", done.chunks, " of ", left.size(), " parts, ",
                            format_progress(static_cast<u64>(done.amount), total, seconds())));
        });
  }

  /// Completes the dataset on the first rank.
  PreprocessResult finish() {
    if (log_.is_live()) log_.progress("preprocess: writing the index");
    PreprocessResult result;
    run_on_rank0(ranks_, [&] {
      assembly_->finish();
      result = {.outputs = assembly_->publish(),
                .empty_documents = assembly_->empty_documents(),
                .malformed_lines = assembly_->malformed_lines()};
    });
    return result;
  }

  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  const PreprocessOptions& options_;
  i64 workers_;
  Communicator& ranks_;
  const Log& log_;
  std::vector<WorkUnit> units_;
  Tokenizer tokenizer_;
  PartsFolder folder_;
  UnitPlacement placement_;
  TokenMemory memory_;
  std::optional<PartWriter> writer_;
  std::optional<PartAssembler> assembly_;  // on the first rank only
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_log_time_ = 0;
};

}  // namespace

bool has_parts(const PreprocessOptions& options) {
  return PartsFolder(options, {}).exists();
}

PreprocessResult preprocess_in_parts(const PreprocessOptions& options, i64 workers, Communicator& ranks,
                                     const Log& log) {
  return DistributedPreprocess(options, workers, ranks, log).run();
}

}  // namespace mcpp

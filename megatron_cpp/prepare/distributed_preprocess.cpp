#include "megatron_cpp/prepare/distributed_preprocess.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "data/preprocess/distributed/part_assembler.h"
#include "data/preprocess/distributed/part_writer.h"
#include "data/preprocess/distributed/parts_folder.h"
#include "data/preprocess/input_files.h"
#include "megatron_cpp/prepare/work_distribution.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

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
        places_(folder_, units_) {}

  PreprocessResult run() {
    open_folder();
    run_on_all_ranks(ranks_, [&] {
      writer_.emplace(folder_);
      if (ranks_.rank() == 0) assembly_.emplace(folder_, units_);
      return std::string();
    });
    make_parts(unfinished_units());
    PreprocessResult result = finish();
    broadcast_from_rank0(ranks_, [&] { return folder_.remove(), std::string(); });
    result.seconds = seconds();
    return result;
  }

 private:
  std::string plan() const {
    check_preprocess_options(options_);
    const std::vector<std::string> files = expand_patterns(options_.input);
    u64 bytes = 0;
    for (const std::string& file : files)
      if (std::filesystem::is_regular_file(file)) bytes += std::filesystem::file_size(file);
    return as_text(make_work_units(files, options_.format(), choose_unit_bytes(bytes)));
  }

  std::vector<std::string> keys() const {
    std::vector<bool> are_json_lines;
    for (const WorkUnit& unit : units_) are_json_lines.push_back(unit.is_json_lines);
    return output_keys(options_, are_json_lines);
  }

  void open_folder() const {
    broadcast_from_rank0(ranks_, [&] {
      folder_.remove_leftovers();
      folder_.open(tokenizer_);
      return std::string();
    });
    run_on_all_ranks(ranks_, [&] {
      check_input(folder_.exists(), folder_.path().string(),
                  ": is not there for this rank; all ranks must see the same folder, as on a shared file system");
      folder_.open(tokenizer_);
      return std::string();
    });
  }

  /// Returns the units whose tokens are not in place yet.
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
      places_.add(i, std::move(metadata));
      if (assembly_) assembly_->add(i);
    }
    if (num_finished > 0)
      log_.info(str(folder_.path().string(), ": ", num_finished, " of ", units_.size(), " parts are there already"));
    return left;
  }

  /// Tokenizes a unit on a thread of this rank. The tokens are written once the sizes of all earlier units are known.
  ProcessedPiece process_unit(std::size_t index, const std::function<void(double)>& add) {
    if (assembly_) assembly_->check();
    const WorkUnit& unit = units_[index];
    i64 before = 0;
    std::shared_ptr<UnitTokens> tokens = tokenize_unit(folder_, unit, tokenizer_, workers_, memory_, [&](i64 bytes) {
      add(static_cast<double>(bytes - std::exchange(before, bytes)));
    });
    return {.text = serialize_metadata(unit, folder_.keys(), tokens->part().metadata),
            .end = [this, index, tokens = std::move(tokens)](const std::stop_token& stop) mutable {
              const auto output_ranges = places_.wait_for(index, stop);
              if (!output_ranges) return;
              const TokenMemory::WriteScope writing(memory_);
              writer_->write(*tokens, *output_ranges);
              tokens.reset();
            }};
  }

  void make_parts(const std::vector<i64>& left) {
    u64 total = 0;
    const auto unit_of = [&](i64 piece) { return static_cast<std::size_t>(left[static_cast<std::size_t>(piece)]); };
    for (const i64 index : left) total += static_cast<u64>(units_[static_cast<std::size_t>(index)].bytes);
    distribute_work(
        ranks_, std::ssize(left),
        [&](i64 piece, const std::function<void(double)>& add) { return process_unit(unit_of(piece), add); },
        [&](const WorkProgress& done) {
          for (const WorkUpdate& news : done.news) {
            const std::size_t unit = unit_of(news.piece);
            places_.add(unit, parse_metadata(units_[unit], folder_.keys(), news.text, folder_.path()));
          }
          if (assembly_)
            for (const i64 piece : done.ended) assembly_->add(unit_of(piece));
          if (!log_.is_live() || seconds() < next_log_time_) return;
          next_log_time_ = seconds() + static_cast<double>(options_.log_interval);
          log_.progress(str("preprocess ", done.pieces, " of ", left.size(), " parts, ",
                            format_progress(static_cast<u64>(done.amount), total, seconds())));
        });
  }

  /// Completes the dataset on the first rank.
  PreprocessResult finish() {
    if (log_.is_live()) log_.progress("preprocess: writing the index");
    PreprocessResult result;
    broadcast_from_rank0(ranks_, [&] {
      assembly_->finish();
      result = {.outputs = assembly_->publish(),
                .empty_documents = assembly_->empty_documents(),
                .malformed_lines = assembly_->malformed_lines()};
      return std::string();
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
  UnitPlacement places_;
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

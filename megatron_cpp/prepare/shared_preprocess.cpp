#include "megatron_cpp/prepare/shared_preprocess.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "checkpoint/folder/exchange.h"
#include "data/parts/joiner.h"
#include "data/prepare/input_files.h"
#include "megatron_cpp/prepare/work_sharing.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

std::string as_text(const std::vector<WorkUnit>& units) {
  Json list = Json::array();
  for (const WorkUnit& unit : units) {
    const TextRange& range = unit.range;
    list.push_back({unit.path.string(), unit.of_file, unit.bytes, range.begin, range.end, range.begins_document,
                    range.ends_document});
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<WorkUnit> units_of(const std::string& text) {
  std::vector<WorkUnit> units;
  for (const Json& entry : Json::parse(text)) {
    WorkUnit& unit = units.emplace_back();
    unit.path = entry[0].get<std::string>();
    unit.of_file = entry[1];
    unit.bytes = entry[2];
    unit.range = {.begin = entry[3], .end = entry[4], .begins_document = entry[5], .ends_document = entry[6]};
  }
  return units;
}

/// One run of preprocess_in_parts() on one rank.
class SharedPreprocess {
 public:
  SharedPreprocess(const PreprocessOptions& options, i64 workers, Communicator& ranks, const Log& log)
      : options_(options),
        workers_(workers),
        ranks_(ranks),
        log_(log),
        units_(units_of(from_first(ranks, [&] { return plan(); }))),
        tokenizer_(Path(options.tokenizer_model)),
        folder_(options, keys()) {}

  PreprocessResult run() {
    open_folder();
    std::optional<PartsJoiner> joiner;
    run_together(ranks_, [&] {
      joiner.emplace(folder_, units_, options_, ranks_.rank());
      return std::string();
    });
    make_parts(units_left(*joiner), *joiner);
    PreprocessResult result = finish(*joiner);
    from_first(ranks_, [&] { return folder_.remove(), std::string(); });
    result.seconds = seconds();
    return result;
  }

 private:
  std::string plan() const {
    check_preprocess_options(options_);
    const std::vector<std::string> files = matching_files(options_.input);
    u64 bytes = 0;
    for (const std::string& file : files)
      if (std::filesystem::is_regular_file(file)) bytes += std::filesystem::file_size(file);
    return as_text(work_units(files, options_.format(), unit_bytes_for(bytes)));
  }

  std::vector<std::string> keys() const {
    std::vector<std::string> paths;
    for (const WorkUnit& unit : units_) paths.push_back(unit.path.string());
    return output_keys(options_, paths);
  }

  void open_folder() const {
    from_first(ranks_, [&] {
      folder_.remove_leftovers();
      folder_.open(tokenizer_);
      return std::string();
    });
    run_together(ranks_, [&] {
      check_input(folder_.exists(), folder_.path().string(),
                  ": is not there for this rank; all ranks must see the same folder, as on a shared file system");
      folder_.open(tokenizer_);
      return std::string();
    });
  }

  /// Those without a part that is whole. The parts of the others are joined, the same number by each rank.
  std::vector<i64> units_left(PartsJoiner& joiner) const {
    const std::string notes = from_first(ranks_, [&] {
      Json list = Json::array();
      for (const WorkUnit& unit : units_) {
        const std::optional<PartNote> note = folder_.read_note(unit);
        list.push_back(note ? folder_.note_text(unit, *note) : "");
      }
      return list.dump();
    });
    std::vector<i64> left;
    const auto note_of = Json::parse(notes).get<std::vector<std::string>>();
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (note_of[i].empty())
        left.push_back(static_cast<i64>(i));
      else
        joiner.add(i, folder_.parse_note(units_[i], note_of[i]), static_cast<int>(i) % ranks_.size());
    }
    if (left.size() < units_.size()) {
      log_.info(str(folder_.path().string(), ": ", units_.size() - left.size(), " of ", units_.size(),
                    " parts are there already"));
    }
    return left;
  }

  void make_parts(const std::vector<i64>& left, PartsJoiner& joiner) {
    u64 total = 0;
    const auto unit_of = [&](i64 piece) { return static_cast<std::size_t>(left[static_cast<std::size_t>(piece)]); };
    for (const i64 index : left) total += static_cast<u64>(units_[static_cast<std::size_t>(index)].bytes);
    share_work(
        ranks_, std::ssize(left),
        [&](i64 piece, const std::function<void(double)>& add) -> EndOfPiece {
          joiner.check();
          const WorkUnit& unit = units_[unit_of(piece)];
          i64 before = 0;
          const auto end = make_part(folder_, unit, options_, tokenizer_, workers_, [&](i64 bytes) {
            add(static_cast<double>(bytes - std::exchange(before, bytes)));
          });
          return [this, &unit, end] { return folder_.note_text(unit, end()); };
        },
        [&](const WorkDone& done) {
          for (const DonePiece& piece : done.news) {
            const std::size_t unit = unit_of(piece.piece);
            joiner.add(unit, folder_.parse_note(units_[unit], piece.text), piece.rank);
          }
          if (!log_.is_live() || seconds() < next_line_) return;
          next_line_ = seconds() + static_cast<double>(options_.log_interval);
          log_.progress(str("preprocess ", done.pieces, " of ", left.size(), " parts, ",
                            describe_progress(static_cast<u64>(done.amount), total, seconds())));
        });
  }

  /// What is not joined yet, and the names.
  PreprocessResult finish(PartsJoiner& joiner) const {
    if (log_.is_live()) log_.progress("preprocess: joining the last parts");
    run_together(ranks_, [&] { return joiner.finish(), std::string(); });
    PreprocessResult result{
        .outputs = {}, .empty_documents = joiner.empty_documents(), .malformed_lines = joiner.malformed_lines()};
    from_first(ranks_, [&] {
      result.outputs = joiner.publish();
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
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_line_ = 0;
};

}  // namespace

bool has_parts(const PreprocessOptions& options) {
  return PartsFolder(options, {}).exists();
}

PreprocessResult preprocess_in_parts(const PreprocessOptions& options, i64 workers, Communicator& ranks,
                                     const Log& log) {
  return SharedPreprocess(options, workers, ranks, log).run();
}

}  // namespace mcpp

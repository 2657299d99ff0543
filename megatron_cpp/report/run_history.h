// History of a run, read from its metrics.jsonl.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/types.h"

namespace mcpp {

// Table of values by iteration with named columns.

/// Table with one row per recorded iteration, in ascending order. Missing values are NaN.
class NumberTable {
 public:
  struct Column {
    std::string name;
    std::vector<double> values;  ///< one per row
  };
  /// Maximum number of columns; real runs have fewer, but damaged files may have more.
  static constexpr std::size_t kMaxColumns = 256;

  /// Adds a row. If its iteration is not the latest, first removes the rows from that iteration on, which were
  /// recomputed.
  void add(double iteration, std::span<const std::pair<std::string, double>> row);
  /// Removes the rows of later iterations.
  void truncate_after(double iteration);

  std::size_t rows() const { return iterations_.size(); }
  const std::vector<double>& iterations() const { return iterations_; }
  const std::vector<Column>& columns() const { return columns_; }
  /// Returns a column; empty if it does not exist.
  std::span<const double> column(std::string_view name) const;

 private:
  Column* find_or_add(const std::string& name);

  std::vector<double> iterations_;
  std::vector<Column> columns_;
};

/// Times are in seconds since 1970, or NaN if the file has none.
struct RunHistory {
  struct Start {
    double iteration = 0, time = 0;  ///< the run continues after `iteration`
    double world_size = 0, train_iters = 0;
    std::string host, program, device, config;
  };
  struct Event {
    double iteration = 0, time = 0;
    std::string kind, text;
  };
  struct Sample {
    double iteration = 0;
    std::string prompt, text;
  };
  /// Values of all ranks at one iteration, by key.
  struct Ranks {
    double iteration = 0;
    std::map<std::string, std::vector<double>> values;
  };
  struct ExpertLayer {
    double layer = 0;
    std::vector<double> tokens;  ///< [experts] number of tokens routed to each
  };

  NumberTable steps;
  std::map<std::string, NumberTable> evaluations;  ///< tables by curve, named as ValidationStats::split
  std::vector<Start> starts;
  std::vector<Event> events;
  std::vector<Sample> samples;
  std::vector<Ranks> ranks;
  std::map<std::string, std::vector<double>> peak_by_class;  ///< memory of each rank, from the last record
  std::vector<ExpertLayer> experts;  ///< layers of the last step for which experts were recorded
  std::size_t unreadable_lines = 0;

  /// Reads one line. If an iteration repeats, because the run resumed from an earlier checkpoint, the later line in the
  /// file replaces it and all records after that iteration are dropped. Unknown kinds of lines are ignored; lines that
  /// are not records, such as one truncated by a crash, count as unreadable.
  void add_line(std::string_view line);

 private:
  void add_step(double iteration, const nlohmann::ordered_json& record);
  void add_evaluation(double iteration, const std::string& split, const nlohmann::ordered_json& record);
  void add_ranks(double iteration, const nlohmann::ordered_json& record);
  /// Removes all records after the iteration.
  void rewind(double iteration);
};

/// Throws BadInput if the file cannot be read.
RunHistory read_run_history(const Path& file);

// Layout of a run's ranks and pipeline schedule, from its configuration.

/// Parses the text of print_config(), of any version, to pairs ("section.key", TOML value). Skips lines that are not
/// keys.
std::vector<std::pair<std::string, std::string>> config_keys(std::string_view config);
/// Returns the value of one key; "" if missing.
std::string config_value(std::string_view config, std::string_view key);

/// Drawing of a pipeline schedule.
struct PipelineDrawing {
  std::string svg;
  std::string caption;
};

struct RunLayout {
  std::vector<std::string> rank_names = {};    ///< names by rank, such as "rank 3 (tp 1, pp 1)"
  std::vector<PipelineDrawing> pipeline = {};  ///< empty without pipeline parallelism, otherwise one
  std::string problem = {};  ///< reason why the other members are empty, such as a configuration of a different version
};

/// Derives the layout from the text of print_config(). Does not throw for configurations that are invalid in this
/// version.
RunLayout make_run_layout(const std::string& config, i64 world_size);

}  // namespace mcpp

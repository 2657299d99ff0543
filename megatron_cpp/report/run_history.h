// What a run wrote about itself in metrics.jsonl, read back.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "megatron_cpp/report/number_table.h"

namespace mcpp {

/// Times are seconds since 1970, NaN where the file has none.
struct RunHistory {
  struct Start {
    double iteration = 0, time = 0;  ///< goes on after the iteration
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
  /// Of all ranks at one iteration, by the name of what is told of each.
  struct Ranks {
    double iteration = 0;
    std::map<std::string, std::vector<double>> numbers;
  };
  struct ExpertLayer {
    double layer = 0;
    std::vector<double> tokens;  ///< that chose each expert
  };

  NumberTable steps;
  std::map<std::string, NumberTable> evaluations;  ///< by curve: "validation", "validation-<set>", "test"
  std::vector<Start> starts;
  std::vector<Event> events;
  std::vector<Sample> samples;
  std::vector<Ranks> ranks;
  std::map<std::string, std::vector<double>> peak_by_class;  ///< memory by rank, as told last
  std::vector<ExpertLayer> experts;                          ///< of the last step that tells of them
  std::size_t unreadable_lines = 0;

  /// Reads one line. Of an iteration that is told twice, as when a run goes on from an earlier checkpoint, what comes
  /// later in the file stands, and nothing of later iterations from before. Lines of kinds that are not known here are
  /// passed over; what is no record, such as a last line that a crash cut off, counts as unreadable.
  void add_line(std::string_view line);

 private:
  void add_step(double iteration, const nlohmann::ordered_json& record);
  void add_evaluation(double iteration, const std::string& split, const nlohmann::ordered_json& record);
  void add_ranks(double iteration, const nlohmann::ordered_json& record);
  /// Forgets what lies after the iteration.
  void rewind(double iteration);
};

/// "2026-01-31T23:59:59.123Z" as seconds since 1970; NaN for anything else.
double parse_time(const std::string& text);

/// BadInput when the file cannot be read.
RunHistory read_run_history(const Path& file);

}  // namespace mcpp

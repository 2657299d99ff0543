#include "megatron_cpp/commands/checkpoint_average.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>

#include "base/number_format.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/lineage.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/load/average.h"
#include "checkpoint/load/inspect.h"
#include "checkpoint/save/writer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/commands/new_checkpoint.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "megatron_cpp/setup/version.h"
#include "optimizer/optimizer.h"

namespace mcpp {

/// Types of the sums of an average.
enum class SumPrecision { Fp64, Fp32 };

template <>
struct EnumNames<SumPrecision> {
  static constexpr std::array<std::string_view, 2> value{"fp64", "fp32"};
};

namespace {

/// Name in RunState::extra of the checkpoints in an average and their coefficients.
constexpr const char* kAverageName = "average_of";

struct AverageOptions {
  std::vector<std::string> load;
  std::string save;
  i64 latest_k = 0;
  std::vector<double> coefficients;
  double ema_decay = 0;
  SumPrecision sum_precision = SumPrecision::Fp64;
  std::string tokenizer_model;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load, "two or more checkpoints of one model, or one folder of checkpoints");
    visit("save", self.save, "folder to write the checkpoint in");
    visit("latest_k", self.latest_k, "for a folder: number of newest checkpoints to average; 0 = all", at_least(0));
    visit(
        "coefficients", self.coefficients,
        "coefficient of each checkpoint, in the order of load or, for a folder, oldest first; must add up to 1; empty "
        "= equal coefficients");
    visit(
        "ema_decay", self.ema_decay,
        "instead of coefficients: exponential moving average, of which each later checkpoint keeps this fraction; 0 = "
        "none",
        between_excluding_max(0, 1));
    visit("sum_precision", self.sum_precision, "precision of the sums");
    visit("tokenizer_model", self.tokenizer_model, "tokenizer file; empty = the one saved next to the checkpoints");
  }
};

/// Returns the newest checkpoints of the branch of `latest`, oldest first; all if `count` is 0.
std::vector<Path> newest_checkpoints(const Path& folder, i64 count) {
  const std::vector<Path> in_order = checkpoints_in_order(folder);
  check_input(!in_order.empty(), "--load: ", folder.string(), " is neither a checkpoint nor a folder of checkpoints");
  const Path& latest = in_order.front();
  const Lineage lineage = lineage_of(latest);
  const i64 last = *iteration_of(latest.filename().string());
  std::vector<Path> list;
  for (const Path& path : checkpoints_in(folder)) {
    const i64 iteration = *iteration_of(path.filename().string());
    if (iteration <= last && lineage_of(path).precedes(iteration, lineage, last)) list.push_back(path);
  }
  check_input(count <= std::ssize(list), "--latest_k: ", folder.string(), " has only ", list.size(), " checkpoints");
  if (count > 0) list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(count));
  return list;
}

/// Returns the checkpoints to average. Throws BadInput if they are fewer than two or if one occurs twice.
std::vector<Path> find_terms(const AverageOptions& options) {
  const bool is_folder = options.load.size() == 1 && !stored_file_exists(Path(options.load[0]) / kManifestName);
  check_input(is_folder || options.latest_k == 0, "--latest_k: applies only if --load is one folder of checkpoints");
  std::vector<Path> terms;
  if (is_folder) terms = newest_checkpoints(options.load[0], options.latest_k);
  for (std::size_t i = 0; !is_folder && i < options.load.size(); ++i)
    terms.push_back(resolve_checkpoint(options.load[i]));
  check_input(terms.size() >= 2, "--load: only ", terms.size(), " checkpoint (",
              terms.empty() ? "" : terms.front().string(), "); an average needs at least two");
  std::set<Path> known;
  for (const Path& term : terms)
    check_input(known.insert(is_s3_path(term) ? term : std::filesystem::canonical(term)).second,
                "--load: ", term.string(), " occurs twice");
  return terms;
}

std::vector<double> find_coefficients(const AverageOptions& options, const std::vector<Path>& terms) {
  check_input(options.coefficients.empty() || options.ema_decay == 0,
              "--coefficients and --ema_decay exclude each other");
  if (options.ema_decay > 0) {
    for (std::size_t i = 1; i < terms.size(); ++i)
      check_input(terms[i - 1].filename() < terms[i].filename(), "--ema_decay: ", terms[i].string(),
                  " is not newer than ", terms[i - 1].string(), "; list the checkpoints oldest first");
    return ema_coefficients(terms.size(), options.ema_decay);
  }
  if (options.coefficients.empty()) return uniform_coefficients(terms.size());
  check_input(options.coefficients.size() == terms.size(), "--coefficients: has ", options.coefficients.size(),
              " values for ", terms.size(), " checkpoints");
  const double sum = std::accumulate(options.coefficients.begin(), options.coefficients.end(), 0.0);
  check_input(std::abs(sum - 1) <= 1e-6, "--coefficients: must add up to 1, not ", sum);
  return options.coefficients;
}

/// Returns the progress of the newest checkpoint, with the weights of all.
RunState state_of(const CheckpointReader& newest, const Config& config, const std::vector<Path>& terms,
                  const std::vector<double>& coefficients) {
  RunState state;
  state.iteration = newest.state().iteration;
  state.consumed_samples = newest.state().consumed_samples;
  state.consumed_tokens = newest.state().consumed_tokens;
  state.config = print_config(config);
  state.program_version = version_text();
  state.tokenizer_checksum = newest.state().tokenizer_checksum;
  store_special_tokens(read_special_tokens(newest.state(), newest.directory().string()), state);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < terms.size(); ++i)
    parts.push_back(str(shortest(coefficients[i]), " ", terms[i].string()));
  state.extra[kAverageName] = join(parts, "\n");
  return state;
}

Config config_of(const CheckpointReader& reader) {
  return parse_stored_config(reader.state().config, reader.directory().string() + "/config");
}

/// Throws BadInput unless both checkpoints have the weights of the same model.
void check_same_model(const CheckpointReader& checkpoint, const CheckpointReader& newest) {
  std::vector<std::string> lines;
  for (const Difference& difference : architecture_differences(config_of(checkpoint).model, config_of(newest).model))
    lines.push_back(str("\n  ", difference.key, ": ", difference.before, ", but ", difference.now, " in ",
                        newest.directory().string()));
  check_input(lines.empty(), "--load: ", checkpoint.directory().string(),
              " has the weights of a different model:", join(lines, ""),
              "\nOnly checkpoints of one model have an average");
}

}  // namespace

ExitCode average_checkpoints(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint average",
                    .summary =
                        "Averages the weights of several checkpoints of one model, saved with any layouts, and writes "
                        "a checkpoint of weights, without optimizer states.",
                    .positional = {"load"},
                    .required = {"load", "save"}};
  AverageOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_without_checkpoints(options.save);
  const std::vector<Path> paths = find_terms(options);
  const std::vector<double> coefficients = find_coefficients(options, paths);
  std::vector<std::unique_ptr<CheckpointReader>> readers;
  std::vector<AverageTerm> terms;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    readers.push_back(std::make_unique<CheckpointReader>(paths[i]));
    terms.push_back({readers.back().get(), coefficients[i]});
  }
  const CheckpointReader& newest = **std::ranges::max_element(
      readers, {}, [](const std::unique_ptr<CheckpointReader>& reader) { return reader->state().iteration; });
  const Config config = config_of(newest);
  for (const auto& reader : readers) check_same_model(*reader, newest);
  AveragedWeights weights(terms, options.sum_precision == SumPrecision::Fp64 ? DType::F64 : DType::F32, kMasterState);
  const Path tokenizer = find_valid_tokenizer(options.tokenizer_model, newest, config, log);
  const std::string content = tokenizer.empty() ? "" : read_tokenizer_file(tokenizer);
  const FolderLock lock(options.save, log);
  ProgressShardSource source(weights, log, "averaging");
  for (std::size_t i = 0; i < paths.size(); ++i) log.info(str(fixed(coefficients[i], 4), " x ", paths[i].string()));
  log.info(str("wrote ",
               save_model(options.save, content, state_of(newest, config, paths, coefficients), source, log).string()));
  return ExitCode::Done;
}

}  // namespace mcpp

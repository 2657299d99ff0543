// Random pairs of configurations: a run starts with the first, stops, and resumes with the second. Schedules, batch
// sizes, evaluations, saves and log lines after the resume are compared with an oracle that restates the documented
// rules. A copy of the run is killed at a random point after the resume and started again; it ends bitwise identical.
// In the environment, CHANGED_SETTINGS=N sets the number of pairs, and CHANGED_SETTINGS_SEED=S the seed.
#include <cmath>
#include <cstdlib>
#include <map>
#include <numbers>
#include <random>
#include <set>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp::changed_settings_test {
namespace {

/// Settings of one start, drawn at random.
struct Settings {
  bool by_samples = false;
  i64 length = 0;  // iterations or samples
  i64 batch = 0;   // 0: 4 samples, and 8 from sample `growth_sample` on
  i64 growth_sample = 0;
  bool grows_by_tokens = false;  // the growth is at 1000 tokens instead
  std::string style;
  double lr = 0, min_lr = 0;
  i64 warmup = 0, decay = 0, wsd_decay = 0;  // in the unit of `length`
  double warmup_fraction = 0;
  std::string wsd_style, weight_decay_style;
  double first_weight_decay = 0, last_weight_decay = 0;
  i64 eval_interval = 0, eval_iters = 0;
  i64 save_interval = 0, log_interval = 0;
  i64 seq_length = 32;
  std::string precision;
  i64 micro_batch = 0;
  bool averages = false;  // keeps an average of the weights
  int ranks = 1;
  std::vector<std::string> layout;  // command-line arguments

  i64 batch_at(i64 consumed) const { return batch > 0 ? batch : consumed >= growth_sample ? 8 : 4; }
  i64 largest_batch() const { return batch > 0 ? batch : 8; }
};

class SettingsSource {
 public:
  explicit SettingsSource(unsigned seed) : random_(seed) {}

  i64 between(i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random_); }
  template <class T>
  T pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(between(0, static_cast<i64>(values.size()) - 1))];
  }

  Settings draw() {
    Settings s;
    s.by_samples = between(0, 1) == 1;
    s.batch = s.by_samples && between(0, 3) == 0 ? 0 : pick<i64>({4, 8, 12});
    s.growth_sample = between(1, 40);
    s.length = s.by_samples ? between(30, 110) : between(6, 14);
    s.style = pick<std::string>({"constant", "linear", "cosine", "inverse-square-root", "WSD"});
    s.lr = pick<double>({1e-3, 2e-3});
    s.min_lr = s.style == "constant" ? 0 : pick<double>({0, 1e-4});
    s.decay = s.style == "constant" ? 0 : pick<i64>({0, s.length - 1, s.length + 3});
    const i64 whole = s.decay > 0 ? s.decay : s.length;
    s.warmup = pick<i64>({0, whole / 3});
    if (s.warmup == 0 && s.style == "cosine") s.warmup_fraction = 0.25;
    s.wsd_decay = s.style == "WSD" ? std::max<i64>(1, whole / 2) : 0;
    s.wsd_style = pick<std::string>({"exponential", "linear", "cosine", "minus_sqrt"});
    s.weight_decay_style = pick<std::string>({"constant", "linear", "cosine"});
    s.first_weight_decay = pick<double>({0.01, 0.05});
    s.last_weight_decay = pick<double>({0.1, 0.2});
    s.eval_interval = pick<i64>({0, 2, 3, 5});
    s.eval_iters = pick<i64>({1, 2});
    s.save_interval = pick<i64>({0, 2, 3});
    s.log_interval = pick<i64>({1, 3});
    s.seq_length = between(0, 5) == 0 ? 16 : 32;
    s.grows_by_tokens = s.batch == 0 && between(0, 2) == 0;
    if (s.grows_by_tokens) s.growth_sample = (1000 + s.seq_length - 1) / s.seq_length;
    s.precision = between(0, 7) == 0 ? "bf16" : "fp32";
    draw_layout(s);
    s.averages = between(0, 1) == 1;
    return s;
  }

 private:
  void draw_layout(Settings& s) {
    s.ranks = between(0, 3) == 0 ? 2 : 1;
    s.micro_batch = pick<i64>(s.ranks == 2 ? std::vector<i64>{1, 2} : std::vector<i64>{1, 2, 4});
    if (s.ranks == 1) return;
    s.layout = pick<std::vector<std::string>>({{},
                                               {"--parallel.zero_stage=1"},
                                               {"--parallel.zero_stage=3"},
                                               {"--parallel.tensor_model_parallel_size=2"},
                                               {"--parallel.context_parallel_size=2"},
                                               {"--parallel.pipeline_model_parallel_size=2"}});
  }

  std::mt19937 random_;
};

std::vector<std::string> arguments(const Settings& s) {
  const std::string unit = s.by_samples ? "samples" : "iters";
  std::vector<std::string> args{str("--training.train_iters=", s.by_samples ? 0 : s.length),
                                str("--training.train_samples=", s.by_samples ? s.length : 0),
                                str("--optimizer.lr=", s.lr),
                                str("--optimizer.min_lr=", s.style == "constant" ? 0 : s.min_lr),
                                str("--optimizer.lr_decay_style=", s.style),
                                str("--optimizer.lr_warmup_iters=", s.by_samples ? 0 : s.warmup),
                                str("--training.eval_interval=", s.eval_interval),
                                str("--training.eval_iters=", s.eval_iters),
                                str("--checkpoint.save_interval=", s.save_interval),
                                "--checkpoint.keep_last=0",
                                str("--logging.log_interval=", s.log_interval),
                                "--logging.metrics_every_iteration=true",
                                "--training.precision=" + s.precision,
                                str("--training.micro_batch_size=", s.micro_batch),
                                str("--model.seq_length=", s.seq_length),
                                "--model.position_embedding_type=rope"};
  const auto add = [&](bool is_set, const std::string& arg) {
    if (is_set) args.push_back(arg);
  };
  add(s.batch > 0, str("--training.global_batch_size=", s.batch));
  add(s.batch == 0, "--training.global_batch_size=0");
  const std::string growth = s.grows_by_tokens ? "1K" : str(s.growth_sample);
  add(s.batch == 0, str("--training.step_batch_size_schedule=0:4 ", growth, ":8"));
  add(s.by_samples && s.warmup > 0, str("--optimizer.lr_warmup_samples=", s.warmup));
  add(s.warmup_fraction > 0, str("--optimizer.lr_warmup_fraction=", s.warmup_fraction));
  add(s.decay > 0 && (s.style != "constant" || s.warmup_fraction > 0),
      str("--optimizer.lr_decay_", unit, "=", s.decay));
  add(s.averages, "--optimizer.ema_decay=0.9");
  add(s.wsd_decay > 0, str("--optimizer.lr_wsd_decay_", unit, "=", s.wsd_decay));
  add(s.style == "WSD", "--optimizer.lr_wsd_decay_style=" + s.wsd_style);
  if (s.weight_decay_style == "constant") {
    args.push_back(str("--optimizer.weight_decay=", s.first_weight_decay));
  } else {
    args.push_back("--optimizer.weight_decay_incr_style=" + s.weight_decay_style);
    args.push_back(str("--optimizer.start_weight_decay=", s.first_weight_decay));
    args.push_back(str("--optimizer.end_weight_decay=", s.last_weight_decay));
  }
  args.insert(args.end(), s.layout.begin(), s.layout.end());
  return args;
}

double falling_cosine(double ratio) {
  return 0.5 * (1 + std::cos(std::numbers::pi * ratio));
}

double expected_lr(const Settings& s, double done) {
  const double whole = static_cast<double>(s.decay > 0 ? s.decay : s.length);
  const double warmup = s.warmup_fraction > 0 ? s.warmup_fraction * whole : static_cast<double>(s.warmup);
  if (warmup > 0 && done <= warmup) return s.lr * done / warmup;
  if (s.style == "constant") return s.lr;
  if (done > whole) return s.min_lr;
  if (s.style == "inverse-square-root") {
    // Without warm-up, one sample is used instead.
    const double samples = s.by_samples ? 1 : static_cast<double>(s.batch);
    return std::max(s.min_lr, s.lr * std::sqrt(std::max(warmup * samples, 1.0) / std::max(done * samples, 1.0)));
  }
  const double ratio = (done - warmup) / (whole - warmup);
  double share = s.style == "linear" ? 1 - ratio : falling_cosine(ratio);
  if (s.style == "WSD") {
    const double x = std::max(0.0, (done - whole) / static_cast<double>(s.wsd_decay) + 1);
    share = s.wsd_style == "linear"       ? 1 - x
            : s.wsd_style == "cosine"     ? falling_cosine(x)
            : s.wsd_style == "minus_sqrt" ? 1 - std::sqrt(x)
                                          : 2 * std::pow(0.5, x) - 1;
  }
  return s.min_lr + share * (s.lr - s.min_lr);
}

double expected_weight_decay(const Settings& s, double done) {
  if (s.weight_decay_style == "constant") return s.first_weight_decay;
  const double ratio = std::min(1.0, done / static_cast<double>(s.length));
  const double share = s.weight_decay_style == "linear" ? ratio : 1 - falling_cosine(ratio);
  return s.first_weight_decay + share * (s.last_weight_decay - s.first_weight_decay);
}

struct Step {
  i64 batch = 0, consumed = 0;
  double lr = 0, weight_decay = 0;
};

/// Returns the iterations, counted from 1, that a run with settings `s` trains after `iteration` and `consumed`
/// samples.
std::map<i64, Step> expected_steps(const Settings& s, i64 iteration, i64 consumed) {
  std::map<i64, Step> steps;
  for (;;) {
    const i64 batch = s.batch_at(consumed);
    if (s.by_samples ? consumed + batch > s.length : iteration >= s.length) return steps;
    const double done = static_cast<double>(s.by_samples ? consumed : iteration);
    consumed += batch;
    iteration += 1;
    steps[iteration] = {batch, consumed, expected_lr(s, done), expected_weight_decay(s, done)};
  }
}

/// Maps the iteration of each validation loss to the number of samples it averages.
using Evaluations = std::map<i64, i64>;

/// Adds the evaluations of a run that starts after `first` iterations and ends after `last`.
void add_evaluations(const Settings& s, i64 first, i64 last, bool is_end, Evaluations& evaluations) {
  const i64 samples = s.eval_iters * s.largest_batch();
  for (i64 i = first; i <= last; ++i) {
    // Evaluations of an earlier start are not repeated.
    if ((i == last && is_end) || (i > 0 && s.eval_interval > 0 && i % s.eval_interval == 0))
      evaluations.emplace(i, samples);
  }
}

/// Returns true if a run from the start with settings `s` ends by itself at `stop`.
bool is_first_complete(const Settings& s, i64 stop) {
  return stop == static_cast<i64>(expected_steps(s, 0, 0).size());
}

/// Returns the iterations in (first, last] that are multiples of `interval`, and `last`. 0 means no multiples.
std::set<i64> multiples(i64 interval, i64 first, i64 last) {
  std::set<i64> found{last};
  for (i64 i = first + 1; i < last; ++i) {
    if (interval > 0 && i % interval == 0) found.insert(i);
  }
  return found;
}

/// Returns the iterations that have a line in the log.
std::set<i64> logged_iterations(const std::string& log) {
  static constexpr std::string_view kWord = "] iteration";
  std::set<i64> found;
  for (std::size_t at = log.find(kWord); at != std::string::npos; at = log.find(kWord, at + 1))
    found.insert(std::stoll(log.substr(at + kWord.size())));
  return found;
}

/// Returns the key that makes a resume from `first` to `second` fail in any case, or "".
std::string refused_key(const Settings& first, const Settings& second) {
  if (first.precision != second.precision) return "training.precision";
  const bool has_token_positions = second.batch == 0 && second.grows_by_tokens;
  return has_token_positions && first.seq_length != second.seq_length ? "training.step_batch_size_schedule" : "";
}

/// Returns the option that allows all keys whose change a resumed run rejects by default.
std::string all_allowed() {
  return "--checkpoint.allow_changed_keys=training.global_batch_size,training.step_batch_size_schedule,optimizer.lr,"
         "optimizer.min_lr,optimizer.lr_decay_style,optimizer.lr_decay_iters,optimizer.lr_decay_samples,"
         "optimizer.lr_warmup_iters,optimizer.lr_warmup_samples,optimizer.lr_warmup_fraction,"
         "optimizer.lr_wsd_decay_iters,optimizer.lr_wsd_decay_samples,optimizer.lr_wsd_decay_style,"
         "optimizer.weight_decay,optimizer.weight_decay_incr_style,optimizer.start_weight_decay,"
         "optimizer.end_weight_decay,model.seq_length";
}

/// Point of a step or of a save at which a run is killed.
struct Kill {
  i64 iteration = 0;
  std::string point;

  std::vector<std::string> arguments() const {
    return {"--fault_injection.kind=kill", "--fault_injection.iterations=0",
            str("--fault_injection.iteration=", iteration), "--fault_injection.point=" + point};
  }
};

Kill draw_kill(SettingsSource& source, i64 stop) {
  return {.iteration = stop + source.between(1, 8),
          .point = source.pick<std::string>({"step", "before_files", "after_files", "before_manifest", "before_rename",
                                             "before_latest", "before_prune"})};
}

class ChangedSettingsTest : public EndToEnd {
 protected:
  Outcome start(const std::string& save, const Settings& s, const std::string& one_more,
                const Strings& more = {}) const {
    Strings args = pretrain(save, plus(arguments(s), one_more));
    args.insert(args.end(), more.begin(), more.end());
    return s.ranks == 1 ? run(args) : run_on(s.ranks, args);
  }

  void expect_steps(const std::string& save, const std::map<i64, Step>& expected) const {
    const auto lines = records(save, "train");
    ASSERT_EQ(lines.size(), expected.size());
    for (const nlohmann::json& line : lines) {
      const Step& step = expected.at(line["iteration"]);
      EXPECT_EQ(line["global_batch_size"], step.batch) << line;
      EXPECT_EQ(line["consumed_samples"], step.consumed) << line;
      EXPECT_NEAR(line["learning_rate"].get<double>(), step.lr, 1e-12) << line;
      EXPECT_NEAR(line["weight_decay"].get<double>(), step.weight_decay, 1e-12) << line;
    }
  }

  void expect_evaluations(const std::string& save, const Settings& first, const Settings& second, i64 stop,
                          i64 end) const {
    Evaluations expected, found;
    add_evaluations(first, 0, stop, is_first_complete(first, stop), expected);
    const Evaluations before = expected;
    add_evaluations(second, stop, end, /*is_end=*/true, expected);
    for (const nlohmann::json& line : records(save, "validation")) {
      const i64 iteration = line["iteration"];
      found[iteration] = line["tokens"].get<i64>() / (before.contains(iteration) ? first : second).seq_length;
    }
    EXPECT_EQ(found, expected);
  }

  std::set<i64> saved_iterations(const std::string& save) const {
    std::set<i64> found;
    for (const auto& entry : std::filesystem::directory_iterator(at(save))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("iter_")) found.insert(std::stoll(name.substr(5)));
    }
    return found;
  }

  /// Resumes `copy`, a copy of what `save` was resumed from, kills it, starts it again, and compares both runs. Returns
  /// true if the point was reached.
  bool check_kill(const std::string& save, const std::string& copy, const Settings& s, const Kill& kill) const {
    const std::string accepted = all_allowed();
    const Outcome killed = start(copy, s, accepted, kill.arguments());
    const Outcome again = start(copy, s, accepted);
    EXPECT_EQ(again.code, 0) << again.out << again.err;
    expect_same_checkpoint(save, copy);
    return killed.code != 0;
  }

  void check_pair(const std::string& save, const Settings& first, const Settings& second, i64 stop, const Kill& kill) {
    const std::map<i64, Step> before = expected_steps(first, 0, 0);
    const Outcome begun = start(save, first, str("--training.exit_interval=", stop));
    ASSERT_EQ(begun.code, 0) << begun.out << begun.err;
    const std::string copy = save + "_killed";
    std::filesystem::copy(at(save), at(copy), std::filesystem::copy_options::recursive);

    Outcome resumed = start(save, second, "--checkpoint.allow_changed_keys=");
    if (resumed.code != 0) {
      ASSERT_EQ(resumed.code, 2) << resumed.out << resumed.err;
      EXPECT_CONTAINS(resumed.err, "belongs to a different run");
      resumed = start(save, second, all_allowed());
    }
    if (const std::string key = refused_key(first, second); !key.empty()) {
      ASSERT_EQ(resumed.code, 2) << resumed.out << resumed.err;
      EXPECT_CONTAINS(resumed.err, key);
      return;
    }
    ASSERT_EQ(resumed.code, 0) << resumed.out << resumed.err;

    std::map<i64, Step> expected = expected_steps(second, stop, before.at(stop).consumed);
    const i64 end = stop + static_cast<i64>(expected.size());
    if (end > stop) {
      EXPECT_EQ(logged_iterations(resumed.out), multiples(second.log_interval, stop, end));
    }
    expected.insert(before.begin(), before.upper_bound(stop));
    expect_steps(save, expected);
    expect_evaluations(save, first, second, stop, end);
    std::set<i64> saves = multiples(first.save_interval, 0, stop);
    if (end > stop) saves.merge(multiples(second.save_interval, stop, end));
    EXPECT_EQ(saved_iterations(save), saves);
    kills_ += check_kill(save, copy, second, kill);
  }

  int kills_ = 0;
};

TEST_F(ChangedSettingsTest, FollowsDocumentedRulesAfterResume) {
  const char* wanted = std::getenv("CHANGED_SETTINGS");
  const int pairs = wanted ? std::atoi(wanted) : 10;
  const char* seed = std::getenv("CHANGED_SETTINGS_SEED");
  const unsigned first_seed = seed ? static_cast<unsigned>(std::atoi(seed)) : 1;
  const bool has_mpirun = std::system("command -v mpirun >/dev/null") == 0;
  for (int pair = 0; pair < pairs; ++pair) {
    SettingsSource source(first_seed + static_cast<unsigned>(pair));
    const Settings first = source.draw(), second = source.draw();
    if (!has_mpirun && first.ranks + second.ranks > 2) continue;
    const i64 stop = source.between(1, static_cast<i64>(expected_steps(first, 0, 0).size()));
    const Kill kill = draw_kill(source, stop);
    const std::string name = str("pair", pair);
    SCOPED_TRACE(str(name, "\n", first.ranks, " ranks ", join(arguments(first), " "), "\nstops at ", stop, "\n",
                     second.ranks, " ranks ", join(arguments(second), " "), "\nkilled at ", kill.iteration, ", ",
                     kill.point));
    check_pair(name, first, second, stop, kill);
    if (HasFailure()) break;
  }
  EXPECT_GT(kills_, pairs / 8);
  if (wanted) std::cout << kills_ << " runs killed\n";
}

}  // namespace
}  // namespace mcpp::changed_settings_test

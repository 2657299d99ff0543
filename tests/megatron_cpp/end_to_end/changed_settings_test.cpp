// Random pairs of configurations: a run starts with the first, stops, and resumes with the second. Schedules, batch
// sizes and evaluations after the resume are compared with an oracle that restates the documented rules.
// CHANGED_SETTINGS=N in the environment draws N pairs.
#include <cmath>
#include <cstdlib>
#include <map>
#include <numbers>
#include <random>
#include <set>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp::changed_settings_test {
namespace {

using ChangedSettingsTest = EndToEnd;

/// Settings of one start, drawn at random.
struct Settings {
  bool by_samples = false;
  i64 length = 0;  // iterations, or samples
  i64 batch = 0;   // 0: 4 samples, from sample `growth_sample` on 8
  i64 growth_sample = 0;
  std::string style;
  double lr = 0, min_lr = 0;
  i64 warmup = 0, decay = 0, wsd_decay = 0;  // in the unit of `length`
  double warmup_fraction = 0;
  std::string wsd_style, weight_decay_style;
  double first_weight_decay = 0, last_weight_decay = 0;
  i64 eval_interval = 0;
  i64 seq_length = 32;

  i64 batch_at(i64 consumed) const { return batch > 0 ? batch : consumed >= growth_sample ? 8 : 4; }
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
    // The warm-up of this style has a sample as its smallest length, so that it follows the batch size without one.
    s.warmup = s.style == "inverse-square-root" ? whole / 3 : pick<i64>({0, whole / 3});
    if (s.warmup == 0 && s.style == "cosine") s.warmup_fraction = 0.25;
    s.wsd_decay = s.style == "WSD" ? std::max<i64>(1, whole / 2) : 0;
    s.wsd_style = pick<std::string>({"exponential", "linear", "cosine", "minus_sqrt"});
    s.weight_decay_style = pick<std::string>({"constant", "linear", "cosine"});
    s.first_weight_decay = pick<double>({0.01, 0.05});
    s.last_weight_decay = pick<double>({0.1, 0.2});
    s.eval_interval = pick<i64>({0, 2, 3, 5});
    s.seq_length = between(0, 5) == 0 ? 16 : 32;
    return s;
  }

 private:
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
                                "--training.eval_iters=1",
                                "--checkpoint.save_interval=0",
                                str("--model.seq_length=", s.seq_length),
                                "--model.position_embedding_type=rope"};
  const auto add = [&](bool is_set, const std::string& arg) {
    if (is_set) args.push_back(arg);
  };
  add(s.batch > 0, str("--training.global_batch_size=", s.batch));
  add(s.batch == 0, "--training.global_batch_size=0");
  add(s.batch == 0, str("--training.step_batch_size_schedule=0:4 ", s.growth_sample, ":8"));
  add(s.by_samples && s.warmup > 0, str("--optimizer.lr_warmup_samples=", s.warmup));
  add(s.warmup_fraction > 0, str("--optimizer.lr_warmup_fraction=", s.warmup_fraction));
  add(s.decay > 0 && (s.style != "constant" || s.warmup_fraction > 0),
      str("--optimizer.lr_decay_", unit, "=", s.decay));
  add(s.wsd_decay > 0, str("--optimizer.lr_wsd_decay_", unit, "=", s.wsd_decay));
  add(s.style == "WSD", "--optimizer.lr_wsd_decay_style=" + s.wsd_style);
  if (s.weight_decay_style == "constant") {
    args.push_back(str("--optimizer.weight_decay=", s.first_weight_decay));
  } else {
    args.push_back("--optimizer.weight_decay_incr_style=" + s.weight_decay_style);
    args.push_back(str("--optimizer.start_weight_decay=", s.first_weight_decay));
    args.push_back(str("--optimizer.end_weight_decay=", s.last_weight_decay));
  }
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
  if (s.style == "inverse-square-root") return std::max(s.min_lr, s.lr * std::sqrt(warmup / done));
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

/// Iterations, counted from 1, that a run with settings `s` trains after `iteration` and `consumed` samples.
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

/// Iterations after which a run that resumes after `first` and ends after `last` has a validation loss.
std::set<i64> expected_evaluations(const Settings& s, i64 first, i64 last) {
  std::set<i64> found{last};
  for (i64 i = first; i < last; ++i) {
    if (i > 0 && s.eval_interval > 0 && i % s.eval_interval == 0) found.insert(i);
  }
  return found;
}

/// Keys that resuming refuses to change unless they are named.
std::string all_allowed() {
  return "--checkpoint.allow_changed_keys=training.global_batch_size,training.step_batch_size_schedule,optimizer.lr,"
         "optimizer.min_lr,optimizer.lr_decay_style,optimizer.lr_decay_iters,optimizer.lr_decay_samples,"
         "optimizer.lr_warmup_iters,optimizer.lr_warmup_samples,optimizer.lr_warmup_fraction,"
         "optimizer.lr_wsd_decay_iters,optimizer.lr_wsd_decay_samples,optimizer.lr_wsd_decay_style,"
         "optimizer.weight_decay,optimizer.weight_decay_incr_style,optimizer.start_weight_decay,"
         "optimizer.end_weight_decay,model.seq_length";
}

TEST_F(ChangedSettingsTest, FollowDocumentedRulesAfterResume) {
  const char* wanted = std::getenv("CHANGED_SETTINGS");
  const int pairs = wanted ? std::atoi(wanted) : 8;
  for (int pair = 0; pair < pairs; ++pair) {
    SettingsSource source(static_cast<unsigned>(pair) + 1);
    const Settings first = source.draw(), second = source.draw();
    const std::map<i64, Step> before = expected_steps(first, 0, 0);
    const i64 stop = source.between(1, static_cast<i64>(before.size()) - 1);
    const std::string name = str("pair", pair);
    SCOPED_TRACE(str(name, "\n", join(arguments(first), " "), "\nstops at ", stop, "\n", join(arguments(second), " ")));
    train(name, plus(arguments(first), str("--training.exit_interval=", stop)));

    const Outcome refused = run(pretrain(name, arguments(second)));
    const bool is_same_run = refused.code == 0;
    if (!is_same_run) {
      ASSERT_EQ(refused.code, 2) << refused.out << refused.err;
      EXPECT_CONTAINS(refused.err, "belongs to another run");
      train(name, plus(arguments(second), all_allowed()));
    }
    const std::map<i64, Step> after = expected_steps(second, stop, before.at(stop).consumed);
    std::map<i64, Step> expected = after;
    for (const auto& [iteration, step] : before) {
      if (iteration <= stop) expected[iteration] = step;
    }
    const auto lines = records(name, "train");
    ASSERT_EQ(lines.size(), expected.size());
    for (const nlohmann::json& line : lines) {
      const Step& step = expected.at(line["iteration"]);
      EXPECT_EQ(line["global_batch_size"], step.batch) << line;
      EXPECT_EQ(line["consumed_samples"], step.consumed) << line;
      EXPECT_NEAR(line["learning_rate"].get<double>(), step.lr, 1e-12) << line;
      EXPECT_NEAR(line["weight_decay"].get<double>(), step.weight_decay, 1e-12) << line;
    }
    std::set<i64> evaluations;
    for (const nlohmann::json& line : records(name, "validation")) {
      if (line["iteration"] >= stop) evaluations.insert(line["iteration"].get<i64>());
    }
    std::set<i64> expected_after = expected_evaluations(second, stop, stop + static_cast<i64>(after.size()));
    if (first.eval_interval > 0 && stop % first.eval_interval == 0) expected_after.insert(stop);
    EXPECT_EQ(evaluations, expected_after);
  }
}

}  // namespace
}  // namespace mcpp::changed_settings_test

// Runs whose datasets and checkpoints are in an object store: bitwise identical to runs with local files even if
// requests fail.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"
#include "tests/support/s3_environment.h"

namespace mcpp {
namespace {

using test::S3Fault;
using test::S3Request;

class ObjectStoreRunTest : public EndToEndOnRanks {
 protected:
  void SetUp() override {
    EndToEndOnRanks::SetUp();
    store_.store_files(dataset());
  }
  /// Returns the arguments of a run with data and checkpoints in the store.
  static Strings remote(const Strings& more = {}) {
    Strings args{"pretrain", (root() / "run.toml").string(), str("--checkpoint.save=", kSave),
                 "--data.data_path=s3://bucket/data/train_text_document", "--checkpoint.save_interval=3"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  void expect_same_as_local(const std::string& local) const {
    const std::string text = run_ok({"checkpoint", "diff", at(local), kSave});
    EXPECT_CONTAINS(text, " tensors compared, 0 differ");
  }
  /// Makes the server act as if it died at the first request that `is_last` returns true for.
  void die_at(const std::function<bool(const S3Request&)>& is_last) {
    store_.server().set_faults([=, is_dead = false](const S3Request& request) mutable {
      is_dead = is_dead || is_last(request);
      return S3Fault{.drops_connection = is_dead, .ignores_request = is_dead};
    });
  }
  static bool ends_with(const S3Request& request, const std::string& name) {
    return request.method == "PUT" && request.path.ends_with(name);
  }

  static constexpr const char* kSave = "s3://bucket/runs/a";
  test::S3Environment store_;
};

TEST_F(ObjectStoreRunTest, IsBitwiseIdenticalToRunWithLocalFiles) {
  train("local", {"--checkpoint.save_interval=3"});
  run_ok(remote());
  expect_same_as_local("local");
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", kSave}), "intact");
  EXPECT_CONTAINS(run_ok({"checkpoint", "ls", kSave}), "(latest)");
  const Strings text{str("--text=", (root() / "held_out.txt").string()), "--json"};
  const auto score = [&](const std::string& load) {
    const std::string line = run_ok({"evaluate", "--load=" + load, text[0], text[1]});
    return line.substr(line.find("\"tokens\""));
  };
  EXPECT_EQ(score(kSave), score(at("local")));
  EXPECT_TRUE(store_.server().objects().contains("/bucket/runs/a/tokenizer.model"));
  EXPECT_TRUE(store_.server().objects().contains("/bucket/runs/a/metrics.jsonl"));
}

/// A new node has neither the cache nor the metrics of the run.
TEST_F(ObjectStoreRunTest, ResumesOnNewNodeAndOnOtherLayouts) {
  train("local", {"--checkpoint.save_interval=3"});
  run_ok(remote({"--training.exit_interval=6", "--checkpoint.async_save"}));
  store_.clear_cache();
  const Outcome outcome = run_on(2, remote({"--parallel.tensor_model_parallel_size=2"}));
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.out, "resuming from s3://bucket/runs/a/iter_0000006");
  const std::string metrics = store_.server().objects().at("/bucket/runs/a/metrics.jsonl");
  for (int iteration = 1; iteration <= 12; ++iteration)
    EXPECT_NE(metrics.find(str("\"iteration\":", iteration, ",")), std::string::npos) << iteration;
  const std::string diff =
      test::Program({"checkpoint", "diff", at("local") + "/iter_0000006", str(kSave, "/iter_0000006")},
                    root() / "process")
          .wait()
          .out;
  EXPECT_CONTAINS(diff, " tensors compared, 0 differ");
}

TEST_F(ObjectStoreRunTest, ContinuesWhenRequestsFailAndResponsesAreTruncated) {
  train("local", {"--checkpoint.save_interval=3"});
  store_.server().set_faults([count = 0](const S3Request&) mutable {
    switch (++count % 9) {
      case 2:
        return S3Fault{.status = 500};
      case 4:
        return S3Fault{.delay_seconds = 0.3};
      case 6:
        return S3Fault{.truncated_to = 10};
      case 8:
        return S3Fault{.drops_connection = true};
      default:
        return S3Fault();
    }
  });
  run_ok(remote());
  store_.server().set_faults({});
  expect_same_as_local("local");
}

/// The server dies while a checkpoint is uploaded. The run ends for a restart, and the restart loses nothing that an
/// earlier checkpoint has.
TEST_F(ObjectStoreRunTest, StopsForRestartWhenServerDiesDuringSave) {
  train("local", {"--checkpoint.save_interval=3"});
  for (const std::string name : {"manifest.json", "latest", ".h5"}) {
    for (const auto& [path, content] : store_.server().objects())
      if (path.starts_with("/bucket/runs/")) store_.server().remove_object(path);
    store_.clear_cache();
    die_at([=, saves = 0](const S3Request& request) mutable { return ends_with(request, name) && ++saves == 2; });
    const Outcome outcome = run(remote(name == "latest" ? Strings{"--checkpoint.async_save"} : Strings{}));
    EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "failed 3 times");
    EXPECT_EQ(outcome.err.find("test-secret"), std::string::npos);
    store_.server().set_faults({});
    EXPECT_CONTAINS(run_ok(remote()), name == "latest" ? "iter_0000006" : "iter_0000003");
    expect_same_as_local("local");
  }
}

TEST_F(ObjectStoreRunTest, IsBitwiseIdenticalWhenKilledAtAnyTime) {
  train("local", {"--checkpoint.save_interval=3"});
  int kills = 0;
  for (int milliseconds = 300; milliseconds < 1500; milliseconds += 300) {
    test::Program program(remote({"--checkpoint.async_save"}), root() / "process");
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    program.signal(SIGKILL);
    kills += program.wait().code == -SIGKILL;
  }
  EXPECT_GT(kills, 0);
  run_ok(remote());
  expect_same_as_local("local");
}

TEST_F(ObjectStoreRunTest, NamesMistakesBeforeTraining) {
  const auto error = [&](const Strings& more) {
    Strings args = remote();
    for (const std::string& word : more) {  // replaces the option of the same key, if there is one
      const std::string key = word.substr(0, word.find('=') + 1);
      std::erase_if(args, [&](const std::string& other) { return other.starts_with(key); });
      args.push_back(word);
    }
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    return outcome.err;
  };
  EXPECT_CONTAINS(error({"--checkpoint.save=s3://Bucket/a"}), "is not the name of a bucket");
  EXPECT_CONTAINS(error({"--data.data_path=s3://bucket/data/none"}), "s3://bucket/data/none.idx: does not exist");
  EXPECT_CONTAINS(error({"--checkpoint.export_hf_interval=3"}), "needs a local folder");
  EXPECT_CONTAINS(error({"--logging.metrics_path=s3://bucket/metrics"}), "choose a local folder");
  EXPECT_CONTAINS(error({"--checkpoint.local_save=s3://bucket/x", "--checkpoint.local_save_interval=1"}),
                  "not an s3:// path");
  store_.server().set_faults([](const S3Request& request) {
    return S3Fault{.status = request.method == "PUT" ? 403 : 0, .error_code = "AccessDenied"};
  });
  EXPECT_CONTAINS(error({}), "check the credentials");
  store_.server().set_faults({});
  store_.set("AWS_SECRET_ACCESS_KEY", "");
  EXPECT_CONTAINS(error({}), "there are no credentials");
}

}  // namespace
}  // namespace mcpp

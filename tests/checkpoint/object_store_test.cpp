// Checkpoints in an object store.
#include <gmock/gmock.h>

#include <set>

#include "checkpoint/directory/lineage.h"
#include "checkpoint/directory/run_folder.h"
#include "checkpoint/load/inspect.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/s3_environment.h"

namespace mcpp {
namespace {

using test::S3Fault;
using test::S3Request;
using testing::HasSubstr;

class ObjectStoreCheckpointTest : public CheckpointTest {
 protected:
  /// Saves a tensor whose elements start at `first`, half of it on each of two ranks.
  std::vector<std::string> save_on_two_ranks(i64 iteration, i64 first = 0, const Retention& retention = {}) {
    return errors_of_ranks(2, [&](Communicator& world) {
      const i64 begin = world.rank() == 0 ? 0 : kRows / 2;
      std::vector<NamedShard> shards;
      shards.push_back(
          numbered("model/w", full_region({{kRows, kColumns}, {begin, 0}, {kRows / 2, kColumns}}), DType::F32, first));
      RunState state{.iteration = iteration};
      test::save_shards(remote_, state, shards, world, log_, retention);
    });
  }
  void save_remote(i64 iteration, i64 first = 0, const Retention& retention = {}) {
    EXPECT_EQ(save_on_two_ranks(iteration, first, retention), (std::vector<std::string>(2)));
  }
  std::string remote_name(i64 iteration) const { return "run/" + checkpoint_name(iteration) + "/"; }
  Path remote_path(i64 iteration) const { return remote_ / checkpoint_name(iteration); }

  void expect_content(const Path& checkpoint, i64 first = 0) {
    CheckpointReader reader(checkpoint);
    const Tensor values = reader.read_full_tensor("model/w", device_);
    EXPECT_TRUE(same_bits(values, numbered("model/w", {kRows, kColumns}, DType::F32, first).data));
  }
  std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const Path& path : checkpoints_in_order(remote_)) names.push_back(path.filename().string());
    return names;
  }
  /// Makes all uploads fail that `applies` returns true for.
  void fail_uploads(const std::function<bool(const std::string& path)>& applies, int status = 500) {
    store_.server().set_faults([=](const S3Request& request) {
      return S3Fault{.status = request.method == "PUT" && applies(request.path) ? status : 0};
    });
  }

  static constexpr i64 kRows = 64, kColumns = 4096;
  static constexpr std::time_t kSecondsPerDay = 86400;
  test::S3Environment store_{/*max_attempts=*/2};
  const Path remote_ = "s3://bucket/run";
};

TEST_F(ObjectStoreCheckpointTest, LoadsOnAnyNumberOfRanks) {
  save_remote(1);
  save_remote(2, 7);
  EXPECT_EQ(list(), (std::vector<std::string>{"iter_0000002", "iter_0000001"}));
  expect_content(remote_path(1));
  expect_content(remote_path(2), 7);
  EXPECT_EQ(find_problems(remote_path(2)), std::vector<std::string>{});
  EXPECT_THAT(to_text(list_checkpoints(remote_)), HasSubstr("complete (latest)"));
  run_local_ranks(3, [&](Communicator& world, int rank) {
    CheckpointReader reader(remote_path(2));
    const i64 begin = std::vector<i64>{0, 10, 50}[static_cast<std::size_t>(rank)];
    NamedShard part = numbered("model/w", full_region({{kRows, kColumns}, {begin, 0}, {14, kColumns}}));
    const Tensor expected =
        numbered("model/w", full_region({{kRows, kColumns}, {begin, 0}, {14, kColumns}}), DType::F32, 7).data;
    EXPECT_FALSE(reader.load(std::span(&part, 1), world).has_value());
    EXPECT_TRUE(same_bits(part.data, expected));
  });
}

/// A copy made with the store's own tools is a local checkpoint.
TEST_F(ObjectStoreCheckpointTest, IsCheckpointWhenCopiedToFolder) {
  save_remote(5);
  for (const auto& [path, content] : store_.server().objects()) {
    const Path file = scratch_ / path.substr(std::string("/bucket/").size());
    mcpp::create_directories(file.parent_path());
    write_file_atomic(file, content);
  }
  const Path local = scratch_ / "run";
  EXPECT_EQ(find_problems(local / "iter_0000005"), std::vector<std::string>{});
  EXPECT_EQ(latest_in(local), local / "iter_0000005");
  expect_content(local / "iter_0000005");
}

TEST_F(ObjectStoreCheckpointTest, ShowsNothingOfFailedSave) {
  save_remote(1);
  const std::vector<std::string> before = store_.names("");
  fail_uploads([](const std::string& path) { return path.find("shard_00001") != path.npos; });
  for (const std::string& error : save_on_two_ranks(2)) EXPECT_THAT(error, HasSubstr("the object store"));
  EXPECT_EQ(list(), std::vector<std::string>{"iter_0000001"});
  EXPECT_THAT(test::input_error([&] { CheckpointReader reader(remote_path(2)); }), HasSubstr("does not exist"));
  fail_uploads([](const std::string& path) { return path.ends_with("iter_0000002/manifest.json"); }, 403);
  for (const std::string& error : save_on_two_ranks(2)) EXPECT_THAT(error, HasSubstr("check the credentials"));
  EXPECT_EQ(list(), std::vector<std::string>{"iter_0000001"});
  store_.server().set_faults({});
  save_remote(2, 3);
  expect_content(remote_path(2), 3);
  EXPECT_EQ(store_.names(remote_name(2)).size(), 4U) << "objects of failed saves remain";
  EXPECT_EQ(store_.names(remote_name(1)).size(), 4U);
}

/// The process dies before each of its requests in turn. Whatever it leaves, the newest complete checkpoint loads.
TEST_F(ObjectStoreCheckpointTest, LoadsNewestCompleteCheckpointAfterDeathAtAnyRequest) {
  save_remote(1, 1);
  save_remote(2, 2);
  const std::map<std::string, std::string> before = store_.server().objects();
  bool has_finished = false;
  int dead_after = 0;
  for (; !has_finished && dead_after < 200; ++dead_after) {
    for (const auto& [path, content] : store_.server().objects())
      if (!before.contains(path)) store_.server().remove_object(path);
    for (const auto& [path, content] : before) store_.server().set_object(path, content);
    store_.server().set_faults([=, left = dead_after](const S3Request& request) mutable {
      if (request.method == "GET" || request.method == "HEAD" || left-- > 0) return S3Fault();
      return S3Fault{.status = 403};
    });
    const bool is_new = dead_after % 2 == 0;  // a new iteration, or one that replaces iteration 2
    const std::vector<std::string> errors = save_on_two_ranks(is_new ? 3 : 2, 9);
    has_finished = errors == std::vector<std::string>(2) && dead_after > 20;
    store_.server().set_faults({});
    const std::optional<Path> newest = newest_good(remote_, log_);
    ASSERT_TRUE(newest.has_value()) << dead_after;
    CheckpointReader reader(*newest);
    const Tensor values = reader.read_full_tensor("model/w", device_);
    const double first = load(values, 0);
    EXPECT_TRUE(first == 2 || first == 9) << dead_after << ": " << newest->string() << " has " << first;
    expect_content(*newest, static_cast<i64>(first));
    EXPECT_TRUE(!has_finished || first == 9);
  }
  EXPECT_TRUE(has_finished);
}

TEST_F(ObjectStoreCheckpointTest, ReplacesCheckpointOfSameIteration) {
  save_remote(1, 1);
  const std::vector<std::string> before = store_.names(remote_name(1));
  save_remote(1, 2);
  expect_content(remote_path(1), 2);
  const std::vector<std::string> after = store_.names(remote_name(1));
  EXPECT_EQ(after.size(), 4U);
  EXPECT_NE(before, after);
  EXPECT_EQ(find_problems(remote_path(1)), std::vector<std::string>{});
}

TEST_F(ObjectStoreCheckpointTest, RemovesOldCheckpoints) {
  for (i64 iteration = 1; iteration <= 5; ++iteration)
    save_remote(iteration, 0, {.keep_latest_k = 2, .save_retain_interval = 3});
  EXPECT_EQ(list(), (std::vector<std::string>{"iter_0000005", "iter_0000004", "iter_0000003"}));
  EXPECT_TRUE(store_.names(remote_name(1)).empty());
  EXPECT_TRUE(store_.names(remote_name(2)).empty());
}

/// A removal that is interrupted after its first request leaves no checkpoint that seems complete.
TEST_F(ObjectStoreCheckpointTest, RemovesManifestFirst) {
  save_remote(1);
  store_.server().set_faults([removed = 0](const S3Request& request) mutable {
    return S3Fault{.status = request.method == "DELETE" && request.path.find("iter_0000001") != std::string::npos &&
                                     removed++ > 0
                                 ? 403
                                 : 0};
  });
  save_remote(2, 0, {.keep_latest_k = 1});
  EXPECT_EQ(list(), std::vector<std::string>{"iter_0000002"});
  EXPECT_EQ(store_.names(remote_name(1)).size(), 3U);
  store_.server().set_faults({});
  store_.server().set_object_age(kSecondsPerDay + 1);
  save_remote(3, 0, {.keep_latest_k = 1});
  EXPECT_TRUE(store_.names(remote_name(1)).empty());
}

TEST_F(ObjectStoreCheckpointTest, FindsDamagedObjects) {
  save_remote(1, 1);
  save_remote(2, 2);
  std::string shard;
  for (const std::string& name : store_.names(remote_name(2)))
    if (name.starts_with("shard_00001")) shard = "/bucket/" + remote_name(2) + name;
  const std::string content = store_.server().objects().at(shard);
  std::string damaged = content;
  damaged[damaged.size() - 100] ^= 1;
  store_.server().set_object(shard, damaged);
  EXPECT_THAT(find_problems(remote_path(2)).at(0), HasSubstr("differs from its checksum (damaged: model/w)"));
  EXPECT_EQ(newest_good(remote_, log_), remote_path(1));
  store_.server().set_object(shard, content.substr(0, 1000));
  EXPECT_THAT(find_problems(remote_path(2), false).at(0), HasSubstr("has 1000 bytes instead of"));
  store_.server().remove_object(shard);
  EXPECT_THAT(find_problems(remote_path(2), false).at(0), HasSubstr("does not exist"));
  store_.server().set_object(shard, content);
  EXPECT_EQ(find_problems(remote_path(2)), std::vector<std::string>{});
}

/// Another job may be saving on a different host.
TEST_F(ObjectStoreCheckpointTest, RemovesInterruptedUploadsAfterOneDay) {
  store_.server().set_object("/bucket/run/iter_0000007/shard_00000.h5", "a part of a checkpoint");
  store_.server().set_object_age(kSecondsPerDay - 100);
  save_remote(1);
  EXPECT_EQ(store_.names(remote_name(7)).size(), 1U);
  store_.server().set_object_age(kSecondsPerDay + 1);
  save_remote(2);
  EXPECT_TRUE(store_.names(remote_name(7)).empty());
  EXPECT_EQ(list(), (std::vector<std::string>{"iter_0000002", "iter_0000001"}));
}

/// Damaged copies in the cache of the node, of values or of the layout, are not read twice.
TEST_F(ObjectStoreCheckpointTest, ReplacesDamagedLocalCopies) {
  save_remote(1);
  const auto damage_copies = [&](auto&& position) {
    expect_content(remote_path(1));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_.cache() / "objects")) {
      if (!entry.path().filename().string().starts_with("shard_")) continue;
      std::string content = read_text_file(entry.path());
      content[position(content)] ^= 1;
      overwrite(entry.path(), content);
    }
  };
  const auto load_all = [&] {
    CheckpointReader reader(remote_path(1));
    NamedShard all = numbered("model/w", {kRows, kColumns}, DType::F32, 1);
    return reader.load(std::span(&all, 1), *self_);
  };
  damage_copies([](const std::string& content) { return content.size() - 100; });
  EXPECT_TRUE(load_all().has_value());
  EXPECT_FALSE(load_all().has_value());
  damage_copies([](const std::string&) { return std::size_t{0}; });
  EXPECT_TRUE(load_all().has_value());  // the first file; the second is not opened
  EXPECT_TRUE(load_all().has_value());
  EXPECT_FALSE(load_all().has_value());
}

/// An unreachable store must not look like damaged checkpoints, after which a run would use an older one.
TEST_F(ObjectStoreCheckpointTest, DoesNotReportOutageAsDamage) {
  save_remote(1);
  store_.clear_cache();
  store_.server().stop();
  EXPECT_THAT(test::error_with(ExitCode::PeerLost, [&] { find_problems(remote_path(1)); }),
              HasSubstr("failed 2 times"));
  test::error_with(ExitCode::PeerLost, [&] { checkpoints_in_order(remote_); });
  EXPECT_THAT(save_on_two_ranks(2).at(0), HasSubstr("failed 2 times"));
  store_.server().start();
  expect_content(remote_path(1));
}

TEST_F(ObjectStoreCheckpointTest, SetsRunBackByChangingLatest) {
  save_remote(1);
  save_remote(2);
  store_.server().set_object("/bucket/run/latest", "iter_0000001\n");
  EXPECT_EQ(list(), (std::vector<std::string>{"iter_0000001", "iter_0000002"}));
  EXPECT_EQ(continue_lineage({}, 1, remote_).branches.size(), 1U);
  store_.server().set_object("/bucket/run/latest", "iter_0000009\n");
  EXPECT_THAT(test::input_error([&] { list(); }), HasSubstr("names no checkpoint of this folder"));
}

TEST_F(ObjectStoreCheckpointTest, LocksRunFolderAndChecksPermissions) {
  {
    const FolderLock lock(remote_, log_);
    EXPECT_TRUE(std::filesystem::exists(run_folder(remote_) / kLockName));
    EXPECT_TRUE(store_.names("").empty());
  }
  fail_uploads([](const std::string&) { return true; }, 403);
  EXPECT_THAT(test::input_error([&] { FolderLock lock(remote_, log_); }), HasSubstr("check the credentials"));
  store_.server().set_faults({});
  save_remote(1);
  EXPECT_THAT(test::input_error([&] { check_save_folder(remote_path(1)); }), HasSubstr("is a checkpoint itself"));
  EXPECT_THAT(test::input_error([&] { check_file_outside_checkpoints("s3://bucket/a/b", "key"); }),
              HasSubstr("choose a local folder"));
}

}  // namespace
}  // namespace mcpp

// Damaged checkpoints: every kind of damage is found and named, and the newest intact checkpoint is used instead.
#include "checkpoint/directory/folder.h"
#include "checkpoint/load/inspect.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp::damaged_checkpoint_test {
namespace {

namespace fs = std::filesystem;

class DamagedCheckpointTest : public CheckpointTest {
 protected:
  DamagedCheckpointTest() {
    for (i64 i = 1; i <= 2; ++i) {
      save(i, std::vector{numbered("model/a", {64}, DType::F32, i), numbered("model/b", {64, 64}, DType::BF16, i)});
    }
  }
  const Path newest_ = folder_ / "iter_0000002";
  const Path shard_ = newest_ / "shard_00000-of-00001.h5";

  /// Expects that the newest checkpoint is rejected with a message naming `file`, and that the previous one is used.
  void expect_fallback(const std::string& file) {
    const std::vector<std::string> problems = find_problems(newest_);
    ASSERT_FALSE(problems.empty());
    EXPECT_CONTAINS(problems[0], file);
    testing::internal::CaptureStderr();
    EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_CONTAINS(warning, "warning: the checkpoint");
    EXPECT_CONTAINS(warning, file);
  }
};

TEST_F(DamagedCheckpointTest, FallsBackWhenShardIsTruncated) {
  fs::resize_file(shard_, fs::file_size(shard_) - 1);
  expect_fallback("shard_00000-of-00001.h5 has");
}

TEST_F(DamagedCheckpointTest, FallsBackWhenShardIsEmpty) {
  fs::resize_file(shard_, 0);
  expect_fallback("has 0 bytes instead of");
}

TEST_F(DamagedCheckpointTest, FallsBackWhenShardIsMissing) {
  fs::remove(shard_);
  expect_fallback("shard_00000-of-00001.h5: No such file");
}

TEST_F(DamagedCheckpointTest, FallsBackWhenUnlistedShardExists) {
  overwrite(newest_ / "shard_00001-of-00002.h5", "x");
  expect_fallback("shard_00001-of-00002.h5 does not belong");
}

TEST_F(DamagedCheckpointTest, FallsBackWhenShardIsFromDifferentIteration) {
  fs::copy_file(folder_ / "iter_0000001/shard_00000-of-00001.h5", shard_, fs::copy_options::overwrite_existing);
  expect_fallback("differs from its checksum (damaged: model/a, model/b)");
}

TEST_F(DamagedCheckpointTest, FallsBackWhenManifestIsFromDifferentIteration) {
  for (const std::string_view name : {kManifestName, kManifestChecksumName}) {
    fs::copy_file(folder_ / "iter_0000001" / name, newest_ / name, fs::copy_options::overwrite_existing);
  }
  expect_fallback("shard_00000-of-00001.h5 differs from its checksum");
}

TEST_F(DamagedCheckpointTest, FallsBackWhenManifestIsMissingOrTruncated) {
  const Path manifest = newest_ / kManifestName;
  fs::resize_file(manifest, fs::file_size(manifest) / 2);
  expect_fallback("manifest.json is damaged");
  fs::resize_file(manifest, 0);
  expect_fallback("manifest.json is damaged");
  fs::remove(manifest);
  expect_fallback("manifest.json");
}

TEST_F(DamagedCheckpointTest, DetectsEveryFlippedBit) {
  const std::string original = read_text_file(shard_);
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string content = original;
    content[random() % content.size()] ^= static_cast<char>(1 << (random() % 8));
    overwrite(shard_, content);
    const std::vector<std::string> problems = find_problems(newest_);
    ASSERT_EQ(problems.size(), 1u);
    ASSERT_NE(problems[0].find(shard_.string() + " differs from its checksum"), std::string::npos) << problems[0];
  }
  overwrite(shard_, original);
  EXPECT_TRUE(find_problems(newest_).empty());
}

TEST_F(DamagedCheckpointTest, NamesDamagedTensor) {
  std::string content = read_text_file(shard_);
  const Tensor b = CheckpointReader(newest_).read_full_tensor("model/b", device_);
  const std::string bytes_of_b(static_cast<const char*>(b.raw()), static_cast<std::size_t>(b.bytes()));
  const std::size_t at = content.find(bytes_of_b);
  ASSERT_NE(at, std::string::npos);
  content[at + 17] ^= 4;
  overwrite(shard_, content);
  expect_fallback("(damaged: model/b)");
}

TEST_F(DamagedCheckpointTest, FindsNothingWhenAllCheckpointsAreDamaged) {
  fs::remove(shard_);
  fs::remove(folder_ / "iter_0000001" / kManifestName);
  EXPECT_EQ(newest_good(folder_, log_), std::nullopt);
  EXPECT_EQ(newest_good(folder_ / "nowhere", log_), std::nullopt);
}

TEST_F(DamagedCheckpointTest, RejectsFolderWhenLatestNamesNoCheckpoint) {
  for (const char* content : {"", "garbage", "iter_0000009\n", "../../etc", "iter_", "\n\n", "iter_0000002/../x"}) {
    overwrite(folder_ / "latest", content);
    const std::string error = error_of([&] { newest_good(folder_, log_); });
    EXPECT_CONTAINS(error, "latest: names no checkpoint of this folder");
    EXPECT_CONTAINS(error, "remove the file to use the newest, iter_0000002");
    EXPECT_EQ(error_of([&] { resolve_checkpoint(folder_); }), error) << "all commands report the same error";
    EXPECT_EQ(list_checkpoints(folder_).size(), 2u) << "the list shows the existing checkpoints";
  }
  fs::remove(folder_ / "latest");
  EXPECT_EQ(newest_good(folder_, log_), newest_);
}

TEST_F(DamagedCheckpointTest, RejectsFolderWhenLatestIsDanglingLinkOrNamesFile) {
  fs::remove(folder_ / "latest");
  fs::create_symlink("nowhere", folder_ / "latest");
  EXPECT_CONTAINS(error_of([&] { newest_good(folder_, log_); }), "names no checkpoint");
  fs::remove(folder_ / "latest");
  overwrite(folder_ / "iter_0000003", "a file");
  overwrite(folder_ / "latest", "iter_0000003\n");
  EXPECT_CONTAINS(error_of([&] { newest_good(folder_, log_); }), "names no checkpoint");
  fs::remove(folder_ / "latest");
  fs::create_directory(folder_ / "latest");
  EXPECT_CONTAINS(error_of([&] { newest_good(folder_, log_); }), "names no checkpoint");
}

TEST_F(DamagedCheckpointTest, OrderIsIndependentOfFileTimes) {
  overwrite(folder_ / "latest", "iter_0000001\n");
  const auto now = fs::last_write_time(folder_ / "latest");
  for (const auto distance : {std::chrono::hours(-1), std::chrono::hours(0), std::chrono::hours(1)}) {
    for (const auto& entry : fs::recursive_directory_iterator(newest_)) fs::last_write_time(entry, now + distance);
    EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
    EXPECT_EQ(resolve_checkpoint(folder_), folder_ / "iter_0000001");
    EXPECT_EQ(checkpoints_in_order(folder_), (std::vector{folder_ / "iter_0000001", newest_}));
  }
}

TEST_F(DamagedCheckpointTest, PrefersCheckpointWhosePublicationWasInterrupted) {
  overwrite(folder_ / "latest", "iter_0000001\n");
  begin_publication(newest_, newest_);
  EXPECT_EQ(newest_good(folder_, log_), newest_);
  EXPECT_EQ(resolve_checkpoint(folder_), newest_);
  EXPECT_TRUE(list_checkpoints(folder_)[1].is_latest);
  // The record is valid only for this content of `latest` and only for this checkpoint.
  save(0, std::vector{numbered("model/a", {64})});
  EXPECT_FALSE(fs::exists(folder_ / kNextName));
  begin_publication(newest_, newest_);
  overwrite(folder_ / "latest", "iter_0000001\n");
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
  begin_publication(newest_, folder_ / "iter_0000001");
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001") << "a different save of that iteration";
}

TEST_F(DamagedCheckpointTest, ReplacesLatestWhenItIsASymbolicLink) {
  const Path target = folder_ / "target";
  overwrite(target, "iter_0000001\n");
  fs::remove(folder_ / "latest");
  fs::create_symlink(target, folder_ / "latest");
  fs::create_symlink(target, folder_ / kNextName);
  save(3, std::vector{numbered("model/a", {64})});
  EXPECT_EQ(read_text_file(target), "iter_0000001\n");
  EXPECT_FALSE(fs::is_symlink(folder_ / "latest"));
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000003");
}

TEST_F(DamagedCheckpointTest, IgnoresUnfinishedSaves) {
  fs::rename(newest_, folder_ / "iter_0000002.tmp-somewhere-1");
  overwrite(folder_ / "latest", "iter_0000001\n");
  EXPECT_EQ(checkpoints_in(folder_).size(), 1u);
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
}

TEST_F(DamagedCheckpointTest, IsReportedByVerifyAndList) {
  std::string content = read_text_file(shard_);
  content[content.size() / 2] ^= 1;
  overwrite(shard_, content);
  const auto verified = verify_checkpoints(folder_, log_);
  ASSERT_EQ(verified.size(), 2u);
  EXPECT_TRUE(verified[0].problems.empty());
  EXPECT_EQ(verified[1].problems.size(), 1u);
  EXPECT_CONTAINS(to_text(verified), "DAMAGED");
  fs::remove(shard_);
  const auto list = list_checkpoints(folder_);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[1].is_latest);
  EXPECT_FALSE(list[1].problems.empty());
  EXPECT_CONTAINS(to_text(list), "damaged: ");
}

}  // namespace
}  // namespace mcpp::damaged_checkpoint_test

#include <unistd.h>

#include <thread>

#include "checkpoint/directory/folder.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

/// Timeout of the check. In these tests files are visible immediately or never.
constexpr std::chrono::milliseconds kPatience{200};

class SharedFolderTest : public CheckpointTest {
 protected:
  /// Returns the error of the check when rank r sees the folder under the name names[r].
  std::string check(const std::vector<std::string>& names) {
    std::vector<std::string> errors(names.size());
    for (const std::string& name : names) mcpp::create_directories(folder_ / name);
    run_local_ranks(static_cast<int>(names.size()), [&](Communicator& world, int rank) {
      const auto at = static_cast<std::size_t>(rank);
      errors[at] = test::input_error([&] { check_shared_folder(folder_ / names[at], world, kPatience); });
    });
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
    for (const std::string& name : names) EXPECT_TRUE(std::filesystem::is_empty(folder_ / name)) << name;
    return errors[0];
  }
};

TEST_F(SharedFolderTest, AcceptsFolderSharedByAllRanks) {
  EXPECT_EQ(check({"a"}), "");
  EXPECT_EQ(check({"a", "a", "a"}), "");
}

TEST_F(SharedFolderTest, NamesRankThatSeesDifferentFolder) {
  const std::string error = check({"a", "a", "b"});
  EXPECT_CONTAINS(error, "rank 2: host ");
  EXPECT_CONTAINS(error, "does not see in " + (folder_ / "b").string() + " the file that rank 0 (");
  EXPECT_CONTAINS(error, "all ranks must share checkpoint.save");
}

TEST_F(SharedFolderTest, WaitsForFilesThatAppearLate) {
  run_local_ranks(2, [&](Communicator& world, int rank) {
    std::jthread server;
    const Path late = folder_ / "late";
    if (rank == 1) {
      server = std::jthread([&] {
        std::this_thread::sleep_for(kPatience);
        std::filesystem::create_directory_symlink(folder_ / "there", late);
      });
    } else {
      mcpp::create_directories(folder_ / "there");
    }
    EXPECT_EQ(test::input_error(
                  [&] { check_shared_folder(rank == 0 ? folder_ / "there" : late, world, std::chrono::minutes(1)); }),
              "");
  });
}

TEST_F(SharedFolderTest, NamesRankWithoutFolder) {
  std::string error;
  run_local_ranks(2, [&](Communicator& world, int rank) {
    const std::string rank_error =
        test::input_error([&] { check_shared_folder(rank == 0 ? folder_ : folder_ / "none", world, kPatience); });
    if (rank == 0) error = rank_error;
  });
  EXPECT_CONTAINS(error, "rank 1: host ");
  EXPECT_CONTAINS(error, (folder_ / "none").string());
}

}  // namespace
}  // namespace mcpp

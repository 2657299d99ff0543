#include "base/machine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "base/strings.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

constexpr i64 kGiB = i64{1} << 30;

/// The names, shortened, and GiB of the limits of a system that has these files.
std::map<std::string, i64> limits_with(const std::map<std::string, std::string>& files) {
  const test::ScratchFolder scratch;
  std::map<std::string, std::string> all{
      {"proc/meminfo", "MemTotal:       25165824 kB\nMemFree: 1 kB\nSwapTotal:  0 kB\n"}};
  for (const auto& [path, text] : files) all[path] = text;
  for (const auto& [path, text] : all) {
    mcpp::create_directories((scratch.path() / path).parent_path());
    write_file_atomic(scratch.path() / path, text);
  }
  std::map<std::string, i64> found;
  for (const MemoryLimit& limit : memory_limits(scratch.path())) {
    std::string name = limit.name;
    const std::size_t at = name.find("sys/fs/cgroup");
    if (at != std::string::npos) name.erase(0, at + 14);
    found[name] = limit.bytes / kGiB;
  }
  return found;
}

using Limits = std::map<std::string, i64>;

TEST(Machine, MemoryIsThatOfTheMachineWithSwap) {
  EXPECT_EQ(limits_with({}), (Limits{{"the machine's memory", 24}}));
  EXPECT_EQ(limits_with({{"proc/meminfo", "MemTotal: 25165824 kB\nSwapTotal: 8388608 kB\n"}}),
            (Limits{{"the machine's memory", 32}}));
}

TEST(Machine, MemoryIsLimitedByControlGroupsOfVersion2AndThoseAround) {
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "0::/job/step\n"},
                         {"sys/fs/cgroup/memory.max", "max\n"},
                         {"sys/fs/cgroup/job/memory.max", "5368709120\n"},
                         {"sys/fs/cgroup/job/step/memory.max", "max\n"}}),
            (Limits{{"the machine's memory", 24}, {"job/memory.max", 5}}));
  // In a container the group at the root is limited.
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "5368709120\n"}}),
            (Limits{{"the machine's memory", 24}, {"memory.max", 5}}));
  // Without a name space of its own it reads a path that is another's.
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "0::/docker/abc\n"}, {"sys/fs/cgroup/memory.max", "5368709120\n"}}),
            (Limits{{"the machine's memory", 24}, {"memory.max", 5}}));
}

TEST(Machine, MemoryIsLimitedByControlGroupsOfVersion1) {
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n"},
                         {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                         {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8589934592\n"},
                         {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "5368709120\n"}}),
            (Limits{{"the machine's memory", 24},
                    {"memory/a/memory.limit_in_bytes", 8},
                    {"memory/a/b/memory.limit_in_bytes", 5}}));
}

TEST(Machine, SwapCountsAsFarAsTheGroupMayUseIt) {
  const std::string memory = "MemTotal: 25165824 kB\nSwapTotal: 8388608 kB\n";
  const auto group = [&](const std::string& swap) {
    return limits_with({{"proc/meminfo", memory},
                        {"proc/self/cgroup", "0::/\n"},
                        {"sys/fs/cgroup/memory.max", "5368709120\n"},
                        {"sys/fs/cgroup/memory.swap.max", swap}})["memory.max"];
  };
  EXPECT_EQ(group("max\n"), 13);
  EXPECT_EQ(group("0\n"), 5);
  EXPECT_EQ(group("1073741824\n"), 6);
}

TEST(Machine, NothingIsKnownOfASystemWithoutThem) {
  const test::ScratchFolder scratch;
  EXPECT_TRUE(memory_limits(scratch.path()).empty());
}

TEST(Machine, ThisOneHasMemory) {
  const std::vector<MemoryLimit> limits = memory_limits();
  ASSERT_FALSE(limits.empty());
  for (const MemoryLimit& limit : limits) EXPECT_GT(limit.bytes, 0) << limit.name;
  EXPECT_GE(limits[0].bytes, physical_memory());
}

TEST(Machine, KnowsHowLongThisProcessRuns) {
  const double before = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_GT(process_seconds(), before + 0.25);
  EXPECT_LT(process_seconds(), 3600);
}

}  // namespace
}  // namespace mcpp

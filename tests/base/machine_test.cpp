#include "base/machine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "base/strings.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

constexpr i64 kGiB = i64{1} << 30;

/// Returns the limits (shortened name to GiB) of a system that has these files.
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

TEST(MachineTest, MemoryLimitIncludesSwap) {
  EXPECT_EQ(limits_with({}), (Limits{{"the host's memory", 24}}));
  EXPECT_EQ(limits_with({{"proc/meminfo", "MemTotal: 25165824 kB\nSwapTotal: 8388608 kB\n"}}),
            (Limits{{"the host's memory", 32}}));
}

TEST(MachineTest, MemoryIsLimitedByCgroupV2AndItsParents) {
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "0::/job/step\n"},
                         {"sys/fs/cgroup/memory.max", "max\n"},
                         {"sys/fs/cgroup/job/memory.max", "5368709120\n"},
                         {"sys/fs/cgroup/job/step/memory.max", "max\n"}}),
            (Limits{{"the host's memory", 24}, {"job/memory.max", 5}}));
  // In a container, the root group is limited.
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "5368709120\n"}}),
            (Limits{{"the host's memory", 24}, {"memory.max", 5}}));
  // Without its own cgroup namespace, the process reads a path from another namespace.
  EXPECT_EQ(limits_with({{"proc/self/cgroup", "0::/docker/abc\n"}, {"sys/fs/cgroup/memory.max", "5368709120\n"}}),
            (Limits{{"the host's memory", 24}, {"memory.max", 5}}));
}

TEST(MachineTest, MemoryIsLimitedByCgroupV1) {
  EXPECT_EQ(
      limits_with({{"proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n"},
                   {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                   {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8589934592\n"},
                   {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "5368709120\n"}}),
      (Limits{
          {"the host's memory", 24}, {"memory/a/memory.limit_in_bytes", 8}, {"memory/a/b/memory.limit_in_bytes", 5}}));
}

TEST(MachineTest, MemoryIsLimitedByAddressSpaceLimit) {
  const auto with = [](const std::string& soft) {
    return limits_with({{"proc/self/limits",
                         "Limit                     Soft Limit           Hard Limit           Units     \n"
                         "Max stack size            8388608              unlimited            bytes     \n"
                         "Max address space         " +
                             soft + "           unlimited            bytes     \n"}});
  };
  EXPECT_EQ(with("8589934592"), (Limits{{"the host's memory", 24}, {"the limit of its address space (ulimit -v)", 8}}));
  EXPECT_EQ(with("unlimited "), (Limits{{"the host's memory", 24}}));
}

TEST(MachineTest, SwapCountsUpToCgroupSwapLimit) {
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

TEST(MachineTest, ReportsNoLimitsWithoutSystemFiles) {
  const test::ScratchFolder scratch;
  EXPECT_TRUE(memory_limits(scratch.path()).empty());
}

TEST(MachineTest, ReportsMemoryOfThisHost) {
  const std::vector<MemoryLimit> limits = memory_limits();
  ASSERT_FALSE(limits.empty());
  for (const MemoryLimit& limit : limits) EXPECT_GT(limit.bytes, 0) << limit.name;
  EXPECT_GE(limits[0].bytes, physical_memory());
}

TEST(MachineTest, ReportsAgeOfThisProcess) {
  const double before = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_GT(process_seconds(), before + 0.25);
  EXPECT_LT(process_seconds(), 3600);
}

TEST(ProcessTagTest, IsStaleAfterProcessEnds) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) ::pause();
  }
  const std::string tag = str(host_name(), "-", child);
  EXPECT_FALSE(is_stale_tag(tag));
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_stale_tag(tag)) << "a zombie";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_stale_tag(tag));
}

TEST(ProcessTagTest, IsStaleOnOtherHostsAndInThisProcess) {
  EXPECT_TRUE(is_stale_tag(process_tag()));
  EXPECT_TRUE(is_stale_tag("some-other-host-1"));
  EXPECT_FALSE(is_stale_tag(host_name() + "-1")) << "it always runs";
  EXPECT_FALSE(is_stale_tag(host_name() + "-1.0123456789abcdef"));
  EXPECT_TRUE(is_stale_tag("some-other-host.example.org-1.0123456789abcdef"));
  EXPECT_FALSE(is_stale_tag("no number here"));
  EXPECT_FALSE(is_stale_tag(host_name() + "-"));
}

/// The tag is part of the names of temporary files, which a killed process leaves behind.
TEST(ProcessTagTest, TemporaryNameContainsProcessTag) {
  const std::string begin = "/data/latest.tmp-", name = temporary_name("/data/latest").string();
  ASSERT_TRUE(name.starts_with(begin + process_tag() + ".")) << name;
  EXPECT_NE(name, temporary_name("/data/latest").string());
  const std::string random = name.substr((begin + process_tag()).size());
  EXPECT_TRUE(is_stale_tag(name.substr(begin.size())));
  EXPECT_FALSE(is_stale_tag(host_name() + "-1" + random)) << "it always runs";
  EXPECT_TRUE(is_stale_tag("another" + host_name() + "-1" + random))
      << "a different process with this number runs on this host";
}

}  // namespace
}  // namespace mcpp

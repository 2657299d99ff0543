#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "base/machine.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using Cpus = std::vector<int>;

TEST(CpuListTest, ParsesKernelFormatAndRejectsMalformedText) {
  EXPECT_EQ(parse_cpu_list("0-3,8\n"), (Cpus{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), Cpus{5});
  for (const char* text : {"", "\n", "a", "3-1", "1-", "-1", "0,,2", "0-99999999999", "1024", "0 1"})
    EXPECT_EQ(parse_cpu_list(text), Cpus{}) << text;
}

TEST(CpuListTest, ReadsCpusOfPciDeviceNode) {
  const test::ScratchFolder scratch;
  const Path device = scratch.path() / "sys/bus/pci/devices/0000:3b:00.0";
  mcpp::create_directories(device);
  write_file_atomic(device / "local_cpulist", "16-17,48\n");
  EXPECT_EQ(cpus_local_to_pci_device("0000:3B:00.0", scratch.path()), (Cpus{16, 17, 48}));
  EXPECT_EQ(cpus_local_to_pci_device("0000:3C:00.0", scratch.path()), Cpus{});
}

/// Runs in its own thread because the thread's CPU affinity changes.
TEST(CpuListTest, PinsThreadOnlyToAllowedCpus) {
  std::thread([] {
    const auto allowed = [] {
      cpu_set_t set;
      EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
      Cpus cpus;
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
      return cpus;
    };
    const Cpus all = allowed();
    EXPECT_FALSE(set_cpu_affinity({}));
    EXPECT_FALSE(set_cpu_affinity(all));
    EXPECT_FALSE(set_cpu_affinity({CPU_SETSIZE - 1}));  // no test machine has this many CPUs
    EXPECT_EQ(allowed(), all);
    if (all.size() < 2) GTEST_SKIP() << "there is only one CPU";
    EXPECT_TRUE(set_cpu_affinity({all[1], CPU_SETSIZE - 1}));
    EXPECT_EQ(allowed(), Cpus{all[1]});
  }).join();
}

}  // namespace
}  // namespace mcpp

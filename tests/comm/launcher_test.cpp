#include "comm/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/check.h"

namespace mcpp {
namespace {

using Environment = std::map<std::string, std::string>;

std::function<const char*(const char*)> variables_of(const Environment& environment) {
  return [&environment](const char* name) {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  };
}

Launcher launcher_in(const Environment& environment) {
  return read_launcher(variables_of(environment));
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput);
    return error.what();
  }
  return "";
}

TEST(LauncherTest, DefaultsToOneRank) {
  const Launcher launcher = launcher_in({{"HOME", "/"}});
  EXPECT_EQ(launcher.ranks, 1);
  EXPECT_EQ(launcher.variable, "");
  EXPECT_NO_THROW(launcher.check(1));
}

TEST(LauncherTest, UsesLargestAnnouncedRankCount) {
  const Launcher launcher = launcher_in({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_NTASKS", "4"}, {"WORLD_SIZE", ""}});
  EXPECT_EQ(launcher.ranks, 4);
  EXPECT_EQ(launcher.variable, "SLURM_NTASKS");
  EXPECT_NO_THROW(launcher.check(4));
  const std::string error = error_of([&] { launcher.check(1); });
  EXPECT_THAT(error, testing::HasSubstr("SLURM_NTASKS announces 4 ranks, but MPI sees 1"));
  EXPECT_THAT(error, testing::HasSubstr("srun --mpi=pmix"));
}

TEST(LauncherTest, ReadsRanksOfNode) {
  EXPECT_EQ(launcher_in({{"OMPI_COMM_WORLD_SIZE", "8"}}).node_ranks, 0);
  EXPECT_EQ(launcher_in({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}).node_ranks, 4);
  EXPECT_EQ(launcher_in({{"PMI_SIZE", "8"}, {"MPI_LOCALNRANKS", "2"}}).node_ranks, 2);
  EXPECT_EQ(launcher_in({{"OMPI_COMM_WORLD_LOCAL_SIZE", "x"}}).node_ranks, 0);
}

TEST(TimerSlackTest, GrowsWithRanksPerCore) {
  EXPECT_EQ(timer_slack_ns(0, 2), 0U);  // unknown
  EXPECT_EQ(timer_slack_ns(64, 64), 0U);
  EXPECT_EQ(timer_slack_ns(128, 64), 200'000U);
  EXPECT_EQ(timer_slack_ns(256, 2), 12'800'000U);
  EXPECT_EQ(timer_slack_ns(4096, 2), 20'000'000U);
}

SlurmJob job_in(const Environment& environment) {
  return read_slurm_job(variables_of(environment));
}

TEST(LauncherTest, ReadsSlurmJob) {
  EXPECT_EQ(job_in({}).name, "");
  EXPECT_EQ(job_in({{"SLURM_JOB_ID", ""}, {"SLURM_RESTART_COUNT", "1"}}).name, "");
  const SlurmJob first = job_in({{"SLURM_JOB_ID", "77"}, {"SLURM_CLUSTER_NAME", "x"}});
  EXPECT_EQ(first.name, "job 77 of cluster x");
  EXPECT_EQ(first.requeued, 0);
  EXPECT_EQ(job_in({{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "12"}}).requeued, 12);
}

TEST(LauncherTest, RejectsMalformedRankCount) {
  for (const char* text : {"four", "4x", "0", "-1", "4(x2)"})
    EXPECT_THAT(error_of([&] { launcher_in({{"PMI_SIZE", text}}); }), testing::HasSubstr("PMI_SIZE=")) << text;
}

}  // namespace
}  // namespace mcpp

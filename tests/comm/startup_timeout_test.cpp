#include "comm/startup_timeout.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "tests/support/errors.h"

namespace mcpp {
namespace {

double limit_of(const std::string& text) {
  return read_startup_timeout([&](const char* name) -> const char* {
    return std::string(name) == "MEGATRON_CPP_START_TIMEOUT_MINUTES" ? text.c_str() : nullptr;
  });
}

TEST(StartupTimeoutTest, ReadsMinutesFromEnvironment) {
  EXPECT_EQ(limit_of(""), 600);
  EXPECT_EQ(limit_of("0.5"), 30);
  for (const char* bad : {"0", "-1", "soon", "1 minute", "inf", "nan", "1e999"}) {
    const std::string error = test::input_error([&] { limit_of(bad); });
    EXPECT_NE(error.find(std::string("MEGATRON_CPP_START_TIMEOUT_MINUTES=") + bad), std::string::npos) << error;
  }
}

TEST(StartupTimeoutTest, ReadsRankFromLauncher) {
  const std::map<std::string, std::string> variables{{"PMI_RANK", ""}, {"SLURM_PROCID", "7"}};
  EXPECT_EQ(read_rank([&](const char* name) -> const char* {
              const auto it = variables.find(name);
              return it == variables.end() ? nullptr : it->second.c_str();
            }),
            "7");
  EXPECT_EQ(read_rank([](const char*) -> const char* { return nullptr; }), "");
}

TEST(StartupTimeoutTest, DoesNothingWhenStartIsInTime) {
  const auto begin = std::chrono::steady_clock::now();
  { const StartupTimeout limit(3600, {.ranks = 2, .variable = "WORLD_SIZE"}, "0"); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::seconds(30));  // the destructor does not wait for the limit
}

TEST(StartupTimeoutDeathTest, ExitsNamingPendingOperationWhenStartTakesTooLong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto wait = [] {
    StartupTimeout limit(0.2, {.ranks = 2, .variable = "WORLD_SIZE"}, "1");
    limit.enter("the exchange");
    std::this_thread::sleep_for(std::chrono::seconds(60));
    std::exit(0);
  };
  EXPECT_EXIT(wait(), testing::ExitedWithCode(75),
              "\\[rank 1\\] megatron_cpp: error: the exchange has waited 0.2s for the other ranks \\(WORLD_SIZE=2\\)");
}

}  // namespace
}  // namespace mcpp

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "comm/local.h"
#include "comm/metered.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp::identical_on_ranks_test {
namespace {

constexpr int kRanks = 4;

/// The error on each rank, and the bytes that rank 0 sends.
struct Outcome {
  std::array<std::string, kRanks> errors;
  i64 bytes = 0;
};

/// Compares `text` on all ranks with `last` on the last rank.
Outcome compare(const std::string& text, const std::string& last) {
  Outcome outcome;
  run_local_ranks(kRanks, [&](Communicator& world, int rank) {
    const auto meter = std::make_shared<CommMeter>();
    const auto group = make_metered(world.split(0, rank), meter);
    try {
      check_identical_on_ranks("text", rank + 1 < kRanks ? text : last, *group, "give all the same");
    } catch (const Error& error) {
      outcome.errors[static_cast<std::size_t>(rank)] = error.what();
    }
    if (rank == 0) outcome.bytes = meter->total_bytes();
  });
  return outcome;
}

TEST(IdenticalOnRanksTest, DoesNotSendIdenticalTexts) {
  const std::string text(1'000'000, 'a');
  const Outcome outcome = compare(text, text);
  for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
  EXPECT_GT(outcome.bytes, 0);
  EXPECT_LT(outcome.bytes, 1000);
}

TEST(IdenticalOnRanksTest, AllRanksNameDifferingRank) {
  const std::string text(1000, 'a');
  const Outcome outcome = compare(text + "\nb", text + "\nc");
  for (const std::string& error : outcome.errors) {
    EXPECT_NE(error.find("rank 3 has a different text than rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("give all the same"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace mcpp::identical_on_ranks_test

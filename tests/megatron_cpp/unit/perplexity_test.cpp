#include "megatron_cpp/inference/evaluation/perplexity.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

TEST(EvaluationWindowsTest, ScoreEveryTokenOnceWithEnoughContext) {
  for (i64 tokens : {1, 2, 5, 16, 17, 33, 100}) {
    for (i64 seq : {1, 4, 16}) {
      for (i64 stride = 1; stride <= seq; ++stride) {
        std::vector<int> scored(tokens);
        for (const EvaluationWindow& w : evaluation_windows(tokens, seq, stride)) {
          ASSERT_GE(w.begin, 0);
          ASSERT_LE(w.begin + w.length, tokens);
          ASSERT_LE(w.length - 1, seq);
          ASSERT_LE(w.scored, w.length - 1);
          for (i64 i = w.begin + w.length - w.scored; i < w.begin + w.length; ++i) {
            ++scored[i];
            // The context is everything before the token, or at least what the stride leaves.
            const i64 context = i - w.begin;
            ASSERT_GE(context, std::min(i, seq - stride + 1));
          }
        }
        EXPECT_EQ(scored[0], 0);
        for (i64 i = 1; i < tokens; ++i)
          EXPECT_EQ(scored[i], 1) << i << " of " << tokens << " seq " << seq << " stride " << stride;
      }
    }
  }
}

TEST(PerplexityTest, MatchesDefinitions) {
  const Perplexity p{.nll = 8 * 0.69314718055994531, .tokens = 8, .words = 4, .bytes = 16};
  EXPECT_NEAR(p.token_perplexity(), 2, 1e-12);
  EXPECT_NEAR(p.word_perplexity(), 4, 1e-12);
  EXPECT_NEAR(p.bits_per_byte(), 0.5, 1e-12);
}

}  // namespace
}  // namespace mcpp

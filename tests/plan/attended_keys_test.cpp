#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "model/config/block_spec.h"
#include "model/flops.h"
#include "plan/cost/kernel_times.h"
#include "plan/step/step_time.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

Workload work_of(double document_tokens, i64 window) {
  Workload work = test::toy_workload(3, 64, 4, 1);
  if (window > 0) work.model.window_size = {window - 1, 0};
  work.document_tokens = document_tokens;
  return work;
}

/// Counts the keys that each token sees, for consecutive documents split into samples.
double counted(double mean, i64 samples, i64 length, i64 window, i64 chunk = 0) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> lengths(1 / mean);
  double sum = 0, left = lengths(random), age = 0;
  for (i64 sample = 0; sample < samples; ++sample) {
    for (i64 at = 0; at < length; ++at) {
      while (age >= left) age -= left, left = lengths(random);
      age += 1;
      const double position = static_cast<double>(at) + 0.5;
      const double preceding = std::min({age - 0.5, position, window > 0 ? static_cast<double>(window) : position});
      sum += chunk > 0 ? std::fmod(preceding, static_cast<double>(chunk)) : preceding;
    }
  }
  return sum / static_cast<double>(samples * length);
}

TEST(MeanAttendedKeysTest, MatchCountsOfPackedDocuments) {
  for (const double mean : {40.0, 300.0, 2000.0, 20000.0})
    for (const i64 window : {i64{0}, i64{256}}) {
      const double found = mean_attended_keys(work_of(mean, window), window);
      EXPECT_NEAR(found / counted(mean, 4000, 2048, window), 1, 0.02) << mean << ", window " << window;
    }
}

TEST(MeanAttendedKeysTest, MatchCountsInChunks) {
  for (const double mean : {40.0, 300.0, 20000.0})
    for (const i64 chunk : {i64{256}, i64{600}}) {
      const double keys = mean_attended_keys(work_of(mean, 0), 0, chunk);
      EXPECT_NEAR(keys / counted(mean, 4000, 2048, 0, chunk), 1, 0.02) << mean << ", chunk " << chunk;
    }
}

TEST(MeanAttendedKeysTest, MatchFullSampleForLongDocuments) {
  for (const i64 window : {i64{0}, i64{256}}) {
    const double whole = attended_keys(window, work_of(0, window).model.seq_length);
    EXPECT_DOUBLE_EQ(mean_attended_keys(work_of(0, window), window), whole);
    for (const double long_mean : {1e6, 2.04e7, 2.06e7, 1e15})
      EXPECT_NEAR(mean_attended_keys(work_of(long_mean, window), window) / whole, 1, 2e-3) << long_mean;
  }
}

TEST(MeanAttendedKeysTest, ReduceAttentionTime) {
  const Hardware hardware = test::toy_cluster(300, 2.5);
  Workload work = test::toy_workload(8, 4096, 32, 16);
  const KernelTraits program;
  const auto attention = [&] { return step_time({hardware, program, work, {}}).work.attention; };
  const double whole = attention(), seen = mean_attended_keys(work, 0);
  work.document_tokens = 256;
  EXPECT_LT(mean_attended_keys(work, 0), 0.25 * seen);
  EXPECT_NEAR(attention() / whole, mean_attended_keys(work, 0) / seen, 0.01);
}

}  // namespace
}  // namespace mcpp

#include "data/dataset/sampler.h"

#include <numeric>

#include "base/check.h"
#include "base/integer_math.h"

namespace mcpp {
namespace {

std::vector<i64> consecutive(i64 first, i64 count) {
  std::vector<i64> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  return samples;
}

void check_layout(const SamplerLayout& layout) {
  MCPP_CHECK(layout.micro_batch_size >= 1 && layout.data_parallel_size >= 1 && layout.data_parallel_rank >= 0 &&
                 layout.data_parallel_rank < layout.data_parallel_size,
             "invalid layout: micro_batch_size ", layout.micro_batch_size, ", data-parallel rank ",
             layout.data_parallel_rank, " of ", layout.data_parallel_size);
}

}  // namespace

i64 num_micro_batches(i64 global_batch_size, const SamplerLayout& layout) {
  check_layout(layout);
  const i64 step = layout.micro_batch_size * layout.data_parallel_size;
  check_input(global_batch_size >= step && global_batch_size % step == 0, "global_batch_size ", global_batch_size,
              " is not a multiple of micro_batch_size ", layout.micro_batch_size, " times the data-parallel size ",
              layout.data_parallel_size, "; the next multiple is ", round_up(global_batch_size, step));
  return global_batch_size / step;
}

std::vector<i64> micro_batch_samples(i64 consumed_samples, i64 micro_batch, const SamplerLayout& layout) {
  check_layout(layout);
  MCPP_CHECK(consumed_samples >= 0 && micro_batch >= 0, consumed_samples, " consumed, micro-batch ", micro_batch);
  const i64 chunk = micro_batch * layout.data_parallel_size + layout.data_parallel_rank;
  return consecutive(consumed_samples + chunk * layout.micro_batch_size, layout.micro_batch_size);
}

std::vector<i64> global_batch_samples(i64 consumed_samples, i64 global_batch_size) {
  MCPP_CHECK(consumed_samples >= 0 && global_batch_size >= 1, consumed_samples, " consumed, batch of ",
             global_batch_size);
  return consecutive(consumed_samples, global_batch_size);
}

}  // namespace mcpp

#include "parallel/dp/buckets/plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/integer_math.h"

namespace mcpp {
namespace {

/// Returns the first parameter of each bucket, in ascending order; empty without parameters.
std::vector<std::size_t> bucket_starts(std::span<const ParamMeta> params, i64 bucket_elements) {
  std::vector<std::size_t> starts;
  i64 collected = 0;
  for (std::size_t i = params.size(); i-- > 0;) {
    collected += round_up(params[i].numel, kParamAlignment);
    const bool begins_unit = i == 0 || params[i - 1].unit != params[i].unit;
    const bool is_full = bucket_elements > 0 && collected >= bucket_elements;
    if (i == 0 || (begins_unit && is_full)) {
      starts.push_back(i);
      collected = 0;
    }
  }
  std::ranges::reverse(starts);
  return starts;
}

void check_params(std::span<const ParamMeta> params) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    MCPP_CHECK(params[i].numel >= 0, params[i].name, " has ", params[i].numel, " elements");
    MCPP_CHECK(params[i].unit >= 0, params[i].name, " is of unit ", params[i].unit);
    MCPP_CHECK(i == 0 || params[i - 1].unit <= params[i].unit, params[i].name, " of unit ", params[i].unit,
               " comes after unit ", params[i - 1].unit);
  }
}

}  // namespace

BufferPlan plan_buffer(std::span<const ParamMeta> params, int dp, i64 bucket_elements) {
  MCPP_CHECK(dp >= 1, "dp ", dp);
  check_params(params);
  BufferPlan plan{.dp = dp,
                  .params = {params.begin(), params.end()},
                  .offsets = {},
                  .buckets = {},
                  .bucket_by_unit = {},
                  .total = 0};
  const std::vector<std::size_t> starts = bucket_starts(params, bucket_elements);
  for (std::size_t b = 0; b < starts.size(); ++b) {
    const std::size_t end_param = b + 1 < starts.size() ? starts[b + 1] : params.size();
    Bucket bucket{.begin = plan.total,
                  .end = 0,
                  .first_unit = params[starts[b]].unit,
                  .end_unit = params[end_param - 1].unit + 1,
                  .first_param = starts[b],
                  .end_param = end_param};
    for (std::size_t i = bucket.first_param; i < end_param; ++i) {
      plan.offsets.push_back(plan.total);
      plan.total += round_up(params[i].numel, kParamAlignment);
    }
    plan.total = bucket.begin + round_up(plan.total - bucket.begin, dp * kParamAlignment);
    bucket.end = plan.total;
    plan.buckets.push_back(bucket);
    plan.bucket_by_unit.resize(static_cast<std::size_t>(bucket.end_unit));
    for (std::size_t i = bucket.first_param; i < end_param; ++i)
      plan.bucket_by_unit[static_cast<std::size_t>(params[i].unit)] = b;
  }
  return plan;
}

i64 bucket_close_threshold(i64 zero_stage, i64 bucket_elements, bool is_packed) {
  if (zero_stage >= 2) return 1;
  if (!is_packed) return bucket_elements;
  return bucket_elements > 0 ? std::min(bucket_elements, kPackedBucket) : kPackedBucket;
}

ParamPart part_inside(const BufferPlan& plan, std::size_t param, i64 begin, i64 end) {
  const i64 offset = plan.offsets[param];
  const i64 from = std::max(begin, offset), to = std::min(end, offset + plan.params[param].numel);
  return {from - offset, to - from};
}

}  // namespace mcpp

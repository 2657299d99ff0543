// Layout of parameters in the flat parameter and gradient vectors, and their division into buckets that are reduced
// while backward still runs. Pure data, computed before anything is allocated.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Alignment of parameters in elements: full cache lines in every dtype, and aligned vector loads.
inline constexpr i64 kParamAlignment = 64;

struct ParamMeta {
  std::string name;
  i64 numel = 0;
  int unit = 0;  ///< index, in forward order, of the unit (the parameters that are acquired and released together) that
                 ///< contains it
};

/// Elements [begin, end) of the flat vectors, which hold units [first_unit, end_unit) completely. end - begin is a
/// multiple of dp * kParamAlignment, so a bucket divides into dp equal, aligned shards.
struct Bucket {
  i64 begin = 0, end = 0;
  int first_unit = 0, end_unit = 0;
  std::size_t first_param = 0, end_param = 0;

  i64 size() const { return end - begin; }
};

struct BufferPlan {
  int dp = 1;
  std::vector<ParamMeta> params;  ///< parameters in the given order
  std::vector<i64> offsets;       ///< offset of params[i] in the flat vectors
  std::vector<Bucket> buckets;    ///< buckets in vector order; backward completes the last one first
  /// Index of the bucket of each unit; std::nullopt if the unit has no parameters. Looked up at each use of a unit.
  std::vector<std::optional<std::size_t>> bucket_by_unit;
  i64 total = 0;  ///< elements of a flat vector, padding included

  /// Returns the bucket of `unit`, or std::nullopt if the unit has no parameters.
  std::optional<std::size_t> bucket_of(int unit) const {
    const auto index = static_cast<std::size_t>(unit);
    return index < bucket_by_unit.size() ? bucket_by_unit[index] : std::nullopt;
  }
};

/// Lays out `params`, whose units must not decrease, consecutively. Units are collected into buckets from the last to
/// the first, as backward finishes them; a bucket is closed once it has at least `bucket_elements` (Megatron-LM's rule;
/// 0 = one bucket). The bucket reduced last, whose reduction cannot be overlapped, is thus the small remainder.
BufferPlan plan_buffer(std::span<const ParamMeta> params, int dp, i64 bucket_elements);

/// Returns the `bucket_elements` to use in a ZeRO stage if `bucket_elements` are configured. Stages 2 and 3 process
/// unit by unit, so each unit is a bucket. If messages are encoded (`is_packed`), buckets are closed early: messages of
/// one bucket are sent while the next bucket is encoded, and encoded data needs additional memory.
i64 bucket_close_threshold(i64 zero_stage, i64 bucket_elements, bool is_packed);
inline constexpr i64 kPackedBucket = 2'000'000;

/// Part of a parameter inside a range of the flat vectors; empty if count <= 0.
struct ParamPart {
  i64 first = 0;  ///< first element of the part, relative to the parameter
  i64 count = 0;
};
/// Returns the part of parameter `param` inside [begin, end).
ParamPart part_inside(const BufferPlan& plan, std::size_t param, i64 begin, i64 end);

}  // namespace mcpp

// Where every parameter lies in the flat parameter and gradient vectors, and how these are cut into buckets that are
// reduced while backward still runs. Pure data, made before anything is allocated.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Parameters begin at multiples of this many elements: whole cache lines in every type, and aligned vectors.
inline constexpr i64 kParamAlignment = 64;

struct ParamMeta {
  std::string name;
  i64 numel = 0;
  int unit = 0;  ///< what is acquired and released together: usually a block; forward visits 0, 1, 2 ...
};

/// Elements [begin, end) of the flat vectors, holding units [first_unit, end_unit) whole. end - begin is a multiple of
/// dp * kParamAlignment, so that it splits into dp equal, aligned shards.
struct Bucket {
  i64 begin = 0, end = 0;
  int first_unit = 0, end_unit = 0;
  std::size_t first_param = 0, end_param = 0;

  i64 size() const { return end - begin; }
};

struct BufferPlan {
  int dp = 1;
  std::vector<ParamMeta> params;  ///< as given
  std::vector<i64> offsets;       ///< of params[i] in the flat vectors
  std::vector<Bucket> buckets;    ///< in the order of the vector; backward completes the last one first
  /// That holds the parameters of unit 0, 1, ...; none when it has none. A table, because each use of a unit asks.
  std::vector<std::optional<std::size_t>> bucket_by_unit;
  i64 total = 0;  ///< elements of a flat vector, padding included

  /// None also after the last unit that has parameters.
  std::optional<std::size_t> bucket_of(int unit) const {
    const auto index = static_cast<std::size_t>(unit);
    return index < bucket_by_unit.size() ? bucket_by_unit[index] : std::nullopt;
  }
};

/// Lays `params`, whose units must not decrease, one after another. Units are collected into buckets from the last to
/// the first, as backward finishes them; a bucket is closed once it has at least `bucket_elements` (Megatron-LM's rule;
/// 0 = one bucket), so the bucket that is reduced last, with nothing left to hide behind, is the small remainder.
BufferPlan plan_buffer(std::span<const ParamMeta> params, int dp, i64 bucket_elements);

/// The `bucket_elements` of a ZeRO stage, where this many are wanted. Stages 2 and 3 come and go unit by unit: each is
/// a bucket of its own. Where numbers travel packed, `is_packed`, in messages beside them, buckets are closed early:
/// the messages of one are on their way while those of the next are made, and what is packed is in memory twice.
i64 closing_elements(int zero_stage, i64 bucket_elements, bool is_packed);
inline constexpr i64 kPackedBucket = 2'000'000;

/// The part of parameter `param` inside [begin, end) of the flat vectors; empty when count <= 0.
struct ParamPart {
  i64 first = 0;  ///< first element of the part, counted inside the parameter
  i64 count = 0;
};
ParamPart part_inside(const BufferPlan& plan, std::size_t param, i64 begin, i64 end);

}  // namespace mcpp

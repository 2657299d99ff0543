// Encoding of weights for sending and for secondary copies.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "parallel/dp/store.h"
#include "parallel/layout.h"
#include "tensor/ops/low_precision/fp8_weights.h"

namespace mcpp {

/// Encoding of weights as WeightEncoding selects. A message consists of one part of equal size for each rank that
/// updates a part of the bucket. In fp8, parameters with Param::fp8_rounding are sent as codes, and all others
/// unchanged.
class WeightCodec {
 public:
  /// `dtype` is the type of the weights; fp8 needs bf16.
  WeightCodec(const StoreContext& context, DType dtype, WeightEncoding format);

  bool is_packed() const { return format_ != WeightEncoding::Full; }
  /// Returns the dtype of messages.
  DType dtype() const { return is_packed() ? DType::I32 : dtype_; }
  /// Returns the number of elements of one part of the message of a bucket.
  i64 part_numel(std::size_t bucket) const;
  /// Allocates the message of a bucket.
  Tensor make_message(std::size_t bucket) const;
  /// Returns this rank's part of the message for its part of the weights. The message may share their memory, so they
  /// must not change until it is sent. In fp8, update_scales() must have been called since they last changed.
  Tensor encode(std::size_t bucket, const Tensor& own_weights) const;
  /// Returns the weights of a bucket, which may share the memory of the message. Padding after the last parameter is
  /// unspecified.
  Tensor decode(std::size_t bucket, const Tensor& message) const;
  /// Decodes into `weights`, which may be the message itself if it is unencoded.
  void decode_into(std::size_t bucket, const Tensor& message, Tensor& weights) const;
  /// In fp8, computes the scales of the current weights; otherwise does nothing. `own_weights` returns this rank's part
  /// of a bucket. Collective over groups.shard and groups.tensor_parallel, in the same order of buffers on all ranks.
  void update_scales(const std::function<Tensor(std::size_t bucket)>& own_weights);

 private:
  /// Scales of a parameter: entries of amax_ from `first`.
  struct Scales {
    WeightBlocks blocks;
    i64 first = 0, count = 0;
  };
  /// Range of a part of a bucket that has one encoding.
  struct Piece {
    i64 begin = 0, count = 0;  // in the part
    i64 word_offset = 0;       // in the part of the message
    std::size_t param = 0;
    i64 first_element = 0;           // of the parameter
    const Scales* scales = nullptr;  // null: sent unchanged

    i64 words() const;  // of the message
    i64 end_word() const { return word_offset + words(); }
  };

  void add_scales();
  bool has_codes(std::size_t bucket) const;
  /// Returns the pieces of a part, first those with codes.
  std::vector<Piece> pieces(std::size_t bucket, i64 part) const;
  i64 count_words(std::size_t bucket, i64 part) const;
  i64 weights_per_part(std::size_t bucket) const { return context_.plan.buckets[bucket].size() / context_.parts; }
  Tensor amax_of(const Scales& scales) const { return amax_.flat(scales.first, scales.count); }
  WeightRange range_of(const Piece& piece) const;
  Tensor encode_fp8(std::size_t bucket, const Tensor& own_weights) const;
  void decode_fp8(std::size_t bucket, const Tensor& message, Tensor& weights) const;

  StoreContext context_;
  DType dtype_;
  WeightEncoding format_;
  std::vector<std::optional<Scales>> scales_;  // by parameter; only in fp8
  std::vector<i64> part_words_;                // by bucket; only in fp8
  i64 num_tensor_scales_ = 0;                  // number of scales of full tensors, which precede the scales of blocks
  Tensor amax_;                                // fp32 [scales]
};

}  // namespace mcpp

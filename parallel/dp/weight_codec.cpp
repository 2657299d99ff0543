#include "parallel/dp/weight_codec.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/integer_math.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

constexpr i64 kWeightsPerWord = 2;  // bf16 weights per int32 word

}  // namespace

i64 WeightCodec::Piece::words() const {
  return scales ? packed_words(count) : count / kWeightsPerWord;
}

WeightCodec::WeightCodec(const StoreContext& context, DType dtype, WeightEncoding format)
    : context_(context), dtype_(dtype), format_(format) {
  if (format_ != WeightEncoding::Fp8) return;
  MCPP_CHECK(dtype_ == DType::BF16, "fp8 weights need bf16, not ", name_of(dtype_));
  add_scales();
  for (std::size_t b = 0; b < context_.plan.buckets.size(); ++b) {
    i64 words = 0;
    for (i64 part = 0; part < context_.parts; ++part) words = std::max(words, count_words(b, part));
    part_words_.push_back(words);
  }
}

/// Parameters that are rounded together share a scale. Scales of full tensors come first, because ranks with other
/// shards of a tensor share these only.
void WeightCodec::add_scales() {
  scales_.resize(context_.params.size());
  std::map<std::string, i64> shared;
  for (const Param* param : context_.params)
    if (param->fp8_rounding && !param->fp8_rounding->blocks.block.is_defined())
      shared.try_emplace(param->fp8_rounding->group, std::ssize(shared));
  num_tensor_scales_ = std::ssize(shared);
  i64 end = num_tensor_scales_;
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    const std::optional<Fp8Rounding>& rounding = context_.params[i]->fp8_rounding;
    if (!rounding || context_.params[i]->numel() == 0) continue;
    const i64 count = rounding->blocks.count(context_.params[i]->numel());
    const bool has_blocks = rounding->blocks.block.is_defined();
    scales_[i] = Scales{rounding->blocks, has_blocks ? end : shared.at(rounding->group), count};
    if (has_blocks) end += count;
  }
  amax_ = Tensor::zeros({end}, DType::F32, context_.device, MemoryClass::Params);
}

bool WeightCodec::has_codes(std::size_t bucket) const {
  const Bucket& b = context_.plan.buckets[bucket];
  return std::any_of(scales_.begin() + static_cast<std::ptrdiff_t>(b.first_param),
                     scales_.begin() + static_cast<std::ptrdiff_t>(b.end_param), [](const auto& s) { return s; });
}

std::vector<WeightCodec::Piece> WeightCodec::pieces(std::size_t bucket, i64 part) const {
  const BufferPlan& plan = context_.plan;
  const Bucket& b = plan.buckets[bucket];
  const i64 begin = b.begin + part * weights_per_part(bucket), end = begin + weights_per_part(bucket);
  std::vector<Piece> all;
  for (std::size_t i = b.first_param; i < b.end_param; ++i) {
    const i64 from = std::max(begin, plan.offsets[i]),
              to = std::min(end, plan.offsets[i] + round_up(plan.params[i].numel, kPackedBlock));
    if (from < to)
      all.push_back({.begin = from - begin,
                     .count = to - from,
                     .param = i,
                     .first_element = from - plan.offsets[i],
                     .scales = scales_[i] ? &*scales_[i] : nullptr});
  }
  std::ranges::stable_partition(all, [](const Piece& piece) { return piece.scales != nullptr; });
  i64 words = 0;
  for (Piece& piece : all) {
    piece.word_offset = words;
    words += piece.words();
  }
  return all;
}

i64 WeightCodec::count_words(std::size_t bucket, i64 part) const {
  if (!has_codes(bucket)) return weights_per_part(bucket) / kWeightsPerWord;
  const std::vector<Piece> all = pieces(bucket, part);
  return all.empty() ? 0 : all.back().end_word();
}

i64 WeightCodec::part_numel(std::size_t bucket) const {
  if (format_ == WeightEncoding::Fp8) return part_words_[bucket];
  return is_packed() ? packed_words(weights_per_part(bucket)) : weights_per_part(bucket);
}

Tensor WeightCodec::make_message(std::size_t bucket) const {
  return Tensor::empty({part_numel(bucket) * context_.parts}, dtype(), context_.device, MemoryClass::Params);
}

Tensor WeightCodec::encode(std::size_t bucket, const Tensor& own_weights) const {
  if (!is_packed()) return own_weights;
  if (format_ == WeightEncoding::Fp8) return encode_fp8(bucket, own_weights);
  Tensor message = Tensor::empty({part_numel(bucket)}, dtype(), context_.device, MemoryClass::Params);
  ops::pack(own_weights, message);
  return message;
}

Tensor WeightCodec::decode(std::size_t bucket, const Tensor& message) const {
  if (!is_packed()) return message;
  if (format_ == WeightEncoding::Fp8 && !has_codes(bucket)) return message.reinterpret(dtype_);
  Tensor weights = Tensor::empty({context_.plan.buckets[bucket].size()}, dtype_, context_.device, MemoryClass::Params);
  decode_into(bucket, message, weights);
  return weights;
}

void WeightCodec::decode_into(std::size_t bucket, const Tensor& message, Tensor& weights) const {
  if (format_ == WeightEncoding::Fp8) return decode_fp8(bucket, message, weights);
  if (is_packed()) return ops::unpack(message, weights);
  if (message.raw() != weights.raw()) ops::copy(message, weights);
}

WeightRange WeightCodec::range_of(const Piece& piece) const {
  return {piece.scales->blocks, piece.first_element, context_.plan.params[piece.param].numel};
}

void WeightCodec::update_scales(const std::function<Tensor(std::size_t bucket)>& own_weights) {
  if (format_ != WeightEncoding::Fp8) return;
  ops::fill_zero(amax_);
  for (std::size_t b = 0; b < context_.plan.buckets.size(); ++b) {
    if (!has_codes(b)) continue;
    const Tensor weights = own_weights(b);
    for (const Piece& piece : pieces(b, context_.part)) {
      if (!piece.scales) continue;
      Tensor amax = amax_of(*piece.scales);
      ops::add_weight_amax(weights.flat(piece.begin, piece.count), range_of(piece), amax);
    }
  }
  context_.groups.shard.all_reduce(amax_, ReduceOp::Max).wait();
  Tensor tensor_amax = amax_.flat(0, num_tensor_scales_);
  if (context_.groups.tensor_parallel) context_.groups.tensor_parallel->all_reduce(tensor_amax, ReduceOp::Max).wait();
}

Tensor WeightCodec::encode_fp8(std::size_t bucket, const Tensor& own_weights) const {
  if (!has_codes(bucket)) return own_weights.reinterpret(dtype());
  Tensor message = Tensor::empty({part_numel(bucket)}, dtype(), context_.device, MemoryClass::Params);
  i64 end = 0;
  for (const Piece& piece : pieces(bucket, context_.part)) {
    end = piece.end_word();
    const Tensor from = own_weights.flat(piece.begin, piece.count);
    if (piece.scales) {
      Tensor to = message.flat(piece.word_offset, piece.words());
      ops::pack_fp8_weights(from, range_of(piece), amax_of(*piece.scales), to);
    } else {
      Tensor to = message.flat(piece.word_offset, piece.words()).reinterpret(dtype_);
      ops::copy(from, to);
    }
  }
  // Parts of other ranks may be longer. Equal weights must give equal messages, which repeated steps compare.
  Tensor rest = message.flat(end, message.numel() - end);
  if (rest.numel() > 0) ops::fill_zero(rest);
  return message;
}

void WeightCodec::decode_fp8(std::size_t bucket, const Tensor& message, Tensor& weights) const {
  if (!has_codes(bucket)) return ops::copy(message.reinterpret(dtype_), weights);
  for (i64 part = 0; part < context_.parts; ++part) {
    const Tensor part_message = message.flat(part * part_numel(bucket), part_numel(bucket));
    for (const Piece& piece : pieces(bucket, part)) {
      Tensor to = weights.flat(part * weights_per_part(bucket) + piece.begin, piece.count);
      if (piece.scales)
        ops::unpack_fp8_weights(part_message.flat(piece.word_offset, piece.words()), to);
      else
        ops::copy(part_message.flat(piece.word_offset, piece.words()).reinterpret(dtype_), to);
    }
  }
}

}  // namespace mcpp

#include "megatron_cpp/huggingface/quantized_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/integer_math.h"
#include "tensor/ops/low_precision/float_codes.h"
#include "tensor/ops/low_precision/quantize.h"

namespace mcpp {
namespace {

constexpr i64 kMxfp4Bytes = 16;  // of a block of 32 values

/// Returns the number of blocks of `size` elements, 0 = all, along an axis.
i64 count_blocks(i64 axis, i64 size) {
  return size == 0 ? 1 : ceil_div(axis, size);
}

/// Returns the shape of the scales of a weight with these blocks.
Shape scale_shape(const Shape& weight, const ScaleBlock& block) {
  Shape shape = weight;
  const std::size_t rows = weight.size() - 2;
  shape[rows] = count_blocks(weight[rows], block.rows);
  shape[rows + 1] = count_blocks(weight[rows + 1], block.columns);
  return shape;
}

/// Returns true if scales have the shape that the blocks require. A single scale, or one per row, may have fewer axes.
bool has_scale_shape(const SafeTensor& scales, const SafeTensor& weight, const ScaleBlock& block) {
  if (scales.shape == scale_shape(weight.shape, block)) return true;
  if (weight.shape.size() != 2 || block.columns != 0) return false;
  if (block.rows == 0) return numel(scales.shape) == 1;
  return block.rows == 1 && scales.shape == Shape{weight.shape[0]};
}

bool is_scale_type(SafeType type) {
  return type == SafeType::F32 || type == SafeType::BF16 || type == SafeType::F16 || type == SafeType::F8E8M0;
}

/// Returns the product of a code's value and a scale, rounded to fp32 and then to the type of the scales if
/// `rounds_to` states it.
float scaled(float value, float scale, SafeType rounds_to) {
  const float product = value * scale;
  if (rounds_to == SafeType::BF16) return static_cast<float>(BFloat16(product));
  return rounds_to == SafeType::F16 ? static_cast<float>(Float16(product)) : product;
}

/// Copies the matrix [rows, columns] of E4M3 codes to `to`, multiplied by the scales of blocks.
template <class T>
void dequantize_matrix(const std::byte* codes, i64 rows, i64 columns, const float* scales, const ScaleBlock& block,
                       SafeType rounds_to, T* to) {
  static constexpr std::array<float, 256> kValues = fp8_code_values(Fp8Format::E4M3);
  const i64 height = block.rows == 0 ? rows : block.rows, width = block.columns == 0 ? columns : block.columns;
  const i64 per_row = count_blocks(columns, block.columns);
  for (i64 row = 0; row < rows; ++row) {
    for (i64 column = 0; column < columns; ++column) {
      const float scale = scales[row / height * per_row + column / width];
      const auto code = static_cast<std::size_t>(codes[row * columns + column]);
      to[row * columns + column] = T(scaled(kValues[code], scale, rounds_to));
    }
  }
}

/// Copies blocks of one expert, [rows, groups, 16] bytes, to the transposed matrix [32 groups, rows].
template <class T>
void dequantize_expert(const std::byte* blocks, const std::byte* scales, i64 rows, i64 groups, T* to) {
  for (i64 group = 0; group < groups; ++group) {
    for (i64 row = 0; row < rows; ++row) {
      const i64 at = row * groups + group;
      const float scale = from_e8m0(static_cast<u8>(scales[at]));
      for (i64 i = 0; i < kMxfp4Bytes; ++i) {
        const auto byte = static_cast<u8>(blocks[at * kMxfp4Bytes + i]);
        T* const column = to + (group * kMxfp4Bytes + i) * 2 * rows + row;
        column[0] = T(kE2m1Values[byte & 0xF] * scale);
        column[rows] = T(kE2m1Values[byte >> 4] * scale);
      }
    }
  }
}

}  // namespace

WeightFiles::WeightFiles(SafetensorsReader files, Quantization quantization, std::string folder)
    : files_(std::move(files)), quantization_(std::move(quantization)), folder_(std::move(folder)) {}

bool WeightFiles::is_fp8(const std::string& name) const {
  const SafeTensor* tensor = files_.find(name);
  return tensor && (tensor->type == SafeType::F8E4M3 || tensor->type == SafeType::F8E5M2);
}

bool WeightFiles::is_mxfp4(const std::string& name) const {
  return quantization_.method == QuantMethod::Mxfp4 && !files_.find(name) && files_.find(name + "_blocks");
}

WeightFiles::Scales WeightFiles::scales_of(const SafeTensor& weight) const {
  const bool is_inverse = quantization_.method == QuantMethod::Fp8;
  check_input(is_inverse || quantization_.method == QuantMethod::CompressedTensors, folder_, ": ", weight.name,
              " is in fp8, but config.json has no 'quantization_config' with 'quant_method' fp8 or compressed-tensors, "
              "which states how to scale it; use the config.json of the quantized model");
  check_input(weight.type == SafeType::F8E4M3 && weight.shape.size() >= 2 && numel(weight.shape) > 0, folder_, ": ",
              weight.name, " has shape ", weight.shape, weight.type == SafeType::F8E4M3 ? "" : " in F8_E5M2",
              "; quantized weights must be matrices in F8_E4M3");
  const std::string name = weight.name + (is_inverse ? "_scale_inv" : "_scale");
  const SafeTensor* scales = files_.find(name);
  check_input(scales, folder_, ": ", weight.name, " is in fp8, but its scales ", name,
              " are missing; download all files of the model again");
  check_input(is_scale_type(scales->type), folder_, ": ", name, " has an element type that scales cannot have; ",
              "allowed: F32, BF16, F16, F8_E8M0");
  std::vector<std::string> allowed;
  for (const ScaleBlock& block : quantization_.blocks) {
    if (has_scale_shape(*scales, weight, block)) return {scales, block};
    allowed.push_back(str(scale_shape(weight.shape, block)));
  }
  fail(ExitCode::BadInput, folder_, ": ", name, " has shape ", scales->shape, ", but 'quantization_config' requires ",
       join(allowed, " or "), " for the shape ", weight.shape, " of ", weight.name);
}

const SafeTensor& WeightFiles::mxfp4_scales(const std::string& name) const {
  const SafeTensor& blocks = files_.at(name + "_blocks");
  const SafeTensor* scales = files_.find(name + "_scales");
  check_input(scales, folder_, ": ", blocks.name, " is in MXFP4, but its scales ", name,
              "_scales are missing; download all files of the model again");
  check_input(blocks.type == SafeType::U8 && scales->type == SafeType::U8, folder_, ": ", blocks.name, " and ",
              scales->name, " must be in U8");
  check_input(blocks.shape.size() == 4 && blocks.shape[3] == kMxfp4Bytes && numel(blocks.shape) > 0, folder_, ": ",
              blocks.name, " has shape ", blocks.shape,
              "; blocks of MXFP4 have the shape [experts, rows, columns / 32, ", kMxfp4Bytes, "]");
  const Shape expected(blocks.shape.begin(), blocks.shape.end() - 1);
  check_input(scales->shape == expected, folder_, ": ", scales->name, " has shape ", scales->shape, ", but ",
              blocks.name, " requires ", expected);
  return *scales;
}

Shape WeightFiles::shape(const std::string& name) const {
  if (is_mxfp4(name)) {
    mxfp4_scales(name);
    const Shape& blocks = files_.at(name + "_blocks").shape;
    return {blocks[0], blocks[2] * kMxfp4Bytes * 2, blocks[1]};
  }
  const SafeTensor& tensor = files_.at(name);
  if (is_fp8(name)) scales_of(tensor);
  return tensor.shape;
}

std::optional<SafeType> WeightFiles::type(const std::string& name) const {
  if (is_mxfp4(name) || is_fp8(name)) return std::nullopt;
  return files_.at(name).type;
}

std::vector<std::string> WeightFiles::stored_names(const std::string& name) const {
  if (is_mxfp4(name)) return {name + "_blocks", name + "_scales"};
  if (!is_fp8(name)) return {name};
  std::vector<std::string> names{name, scales_of(files_.at(name)).tensor->name};
  const std::string module = name.substr(0, name.rfind('.') + 1);
  for (const char* scale : {"input_scale", "output_scale", "activation_scale"}) names.push_back(module + scale);
  return names;
}

Tensor WeightFiles::read(const std::string& name, DType dtype, Device& device) const {
  if (is_mxfp4(name)) return read_mxfp4(name, dtype, device);
  return is_fp8(name) ? read_fp8(name, dtype, device) : files_.read(files_.at(name), dtype, device);
}

Tensor WeightFiles::read_scales(const SafeTensor& scales, Device& device) const {
  const Tensor values = files_.read(scales, DType::F32, device);
  for (i64 i = 0; i < values.numel(); ++i)
    check_input(std::isfinite(values.data<float>()[i]), folder_, ": ", scales.name, " has the value ",
                values.data<float>()[i], " at element ", i,
                "; scales must be finite. The file is damaged; download it again");
  return values;
}

Tensor WeightFiles::read_fp8(const std::string& name, DType dtype, Device& device) const {
  const SafeTensor& weight = files_.at(name);
  const auto [stored_scales, block] = scales_of(weight);
  const Tensor scales = read_scales(*stored_scales, device);
  const SafeType rounds_to =
      quantization_.method == QuantMethod::CompressedTensors ? stored_scales->type : SafeType::F32;
  Tensor result = Tensor::empty(weight.shape, dtype, device, MemoryClass::Other);
  const i64 columns = weight.shape.back(), rows = weight.shape[weight.shape.size() - 2], size = rows * columns;
  const i64 matrices = result.numel() / size, scales_of_matrix = scales.numel() / matrices;
  const std::byte* codes = files_.bytes(weight).data();
  on_float(dtype, [&, &block = block]<class T>() {
    for (i64 i = 0; i < matrices; ++i)
      dequantize_matrix(codes + i * size, rows, columns, scales.data<float>() + i * scales_of_matrix, block, rounds_to,
                        result.data<T>() + i * size);
  });
  return result;
}

Tensor WeightFiles::read_mxfp4(const std::string& name, DType dtype, Device& device) const {
  const SafeTensor& scales = mxfp4_scales(name);
  const SafeTensor& blocks = files_.at(name + "_blocks");
  const std::span<const std::byte> powers = files_.bytes(scales);
  const auto invalid = std::ranges::find(powers, std::byte{0xFF});
  check_input(invalid == powers.end(), folder_, ": ", scales.name, " has the value NaN (255) at element ",
              invalid - powers.begin(), "; scales must be finite. The file is damaged; download it again");
  Tensor result = Tensor::empty(shape(name), dtype, device, MemoryClass::Other);
  const i64 rows = blocks.shape[1], groups = blocks.shape[2];
  on_float(dtype, [&]<class T>() {
    for (i64 expert = 0; expert < blocks.shape[0]; ++expert)
      dequantize_expert(files_.bytes(blocks).data() + expert * rows * groups * kMxfp4Bytes,
                        powers.data() + expert * rows * groups, rows, groups,
                        result.data<T>() + expert * rows * groups * kMxfp4Bytes * 2);
  });
  return result;
}

Fp8Blocks quantize_fp8_blocks(const Tensor& matrix) {
  constexpr i64 kSize = kFp8ExportBlock;
  const i64 rows = matrix.dim(0), columns = matrix.dim(1);
  MCPP_CHECK(rows % kSize == 0 && columns % kSize == 0, matrix.shape());
  Fp8Blocks result{std::vector<u8>(static_cast<std::size_t>(matrix.numel())),
                   Tensor::empty({rows / kSize, columns / kSize}, DType::F32, matrix.device(), MemoryClass::Other)};
  on_float(matrix.dtype(), [&]<class T>() {
    for (i64 i = 0; i < result.scales.numel(); ++i) {
      const i64 first = i / (columns / kSize) * kSize * columns + i % (columns / kSize) * kSize;
      const T* const from = matrix.data<T>() + first;
      float amax = 0;
      for (i64 k = 0; k < kSize * kSize; ++k)
        amax = std::max(amax, std::abs(static_cast<float>(from[k / kSize * columns + k % kSize])));
      // The reciprocal is rounded first, as in PyTorch's division of a number by a tensor.
      const float scale = amax < kMinScale ? 1 : 1 / amax * fp8_max(Fp8Format::E4M3);
      result.scales.data<float>()[i] = 1 / scale;
      for (i64 k = 0; k < kSize * kSize; ++k) {
        const i64 at = k / kSize * columns + k % kSize;
        result.codes[static_cast<std::size_t>(first + at)] =
            to_fp8(Fp8Format::E4M3, static_cast<float>(from[at]) * scale);
      }
    }
  });
  return result;
}

}  // namespace mcpp

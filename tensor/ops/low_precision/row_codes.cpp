#include "tensor/ops/low_precision/row_codes.h"

#include "tensor/on_device.h"
#include "tensor/ops/op_records.h"

namespace mcpp::ops {
namespace {

void check_encoded_rows(const char* op, const Tensor& x, const RowEncoding& encoding, const Tensor& codes) {
  MCPP_CHECK(x.rank() == 2 && x.dtype() == DType::BF16, op, ": x must be a bf16 matrix, not ", name_of(x.dtype()), " ",
             x.shape());
  MCPP_CHECK(encoding.is_defined(), op, ": there are no blocks");
  const Shape expected{x.dim(0), encoding.words(x.dim(1))};
  MCPP_CHECK(codes.dtype() == DType::I32 && codes.shape() == expected, op, ": codes of rows ", x.shape(),
             " must be int32 ", expected, ", not ", name_of(codes.dtype()), " ", codes.shape());
}

}  // namespace

void encode_rows(const Tensor& x, const RowEncoding& encoding, Tensor& codes) {
  check_encoded_rows("encode_rows", x, encoding, codes);
  on_device(
      x,
      [&] {
        return memory_record({&x, &codes});
      },
      [&]<DeviceType D>() { RowCodeKernels<D>::encode_rows(x, encoding, codes); });
}

void decode_rows(const Tensor& codes, const RowEncoding& encoding, Tensor& x) {
  check_encoded_rows("decode_rows", x, encoding, codes);
  on_device(
      x,
      [&] {
        return memory_record({&x, &codes});
      },
      [&]<DeviceType D>() { RowCodeKernels<D>::decode_rows(codes, encoding, x); });
}

}  // namespace mcpp::ops

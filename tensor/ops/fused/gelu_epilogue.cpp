#include "tensor/ops/fused/gelu_epilogue.h"

#include "tensor/on_device.h"

namespace mcpp {

template <>
void GeluEpilogue<DeviceType::Cpu>::forward(const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& u,
                                            Tensor& y) {
  ops::matmul(x, w, u, {.transpose_b = true});
  if (bias) ops::add_bias(u, *bias);
  ops::activation(Activation::Gelu, u, nullptr, y);
}

template <>
void GeluEpilogue<DeviceType::Cpu>::backward(const Tensor& dy, const Tensor& w, const Tensor& u, Tensor& du) {
  Tensor d_activated = Tensor::like(u);
  ops::matmul(dy, w, d_activated);
  ops::activation_backward(Activation::Gelu, d_activated, u, nullptr, du);
}

namespace ops {

void matmul_gelu(const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& u, Tensor& y) {
  MCPP_CHECK(u.shape() == Shape({x.dim(0), w.dim(0)}) && x.dim(1) == w.dim(1) && y.shape() == u.shape(),
             "matmul_gelu: shapes of x ", x.shape(), ", w ", w.shape(), ", u ", u.shape(), " and y ", y.shape(),
             " do not match");
  MCPP_CHECK(!bias || bias->numel() == u.dim(1), "matmul_gelu: the bias must have ", u.dim(1), " elements, not ",
             bias->shape());
  for (const Tensor* t : {&w, static_cast<const Tensor*>(&u), static_cast<const Tensor*>(&y), bias})
    MCPP_CHECK(!t || t->dtype() == x.dtype(), "matmul_gelu: dtypes ", name_of(t->dtype()), " and ", name_of(x.dtype()),
               " differ");
  on_device(y, [&]<DeviceType D>() { GeluEpilogue<D>::forward(x, w, bias, u, y); });
}

void matmul_gelu_backward(const Tensor& dy, const Tensor& w, const Tensor& u, Tensor& du) {
  MCPP_CHECK(u.shape() == Shape({dy.dim(0), w.dim(1)}) && dy.dim(1) == w.dim(0) && du.shape() == u.shape(),
             "matmul_gelu_backward: shapes of dy ", dy.shape(), ", w ", w.shape(), ", u ", u.shape(), " and du ",
             du.shape(), " do not match");
  MCPP_CHECK(du.numel() == 0 || du.raw() != u.raw(), "matmul_gelu_backward: du must not alias u");
  for (const Tensor* t : {&w, &u, static_cast<const Tensor*>(&du)})
    MCPP_CHECK(t->dtype() == dy.dtype(), "matmul_gelu_backward: dtypes ", name_of(t->dtype()), " and ",
               name_of(dy.dtype()), " differ");
  on_device(du, [&]<DeviceType D>() { GeluEpilogue<D>::backward(dy, w, u, du); });
}

}  // namespace ops
}  // namespace mcpp

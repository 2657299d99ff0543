// Comparison of a hand-written backward pass with finite differences, in fp64.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "tensor/tensor.h"

namespace mcpp::test {

/// Returns the sum of products of two fp64 tensors: a scalar loss whose gradient with respect to `x` is `weights`.
inline double dot(const Tensor& x, const Tensor& weights) {
  double sum = 0;
  for (i64 i = 0; i < x.numel(); ++i) sum += x.data<double>()[i] * weights.data<double>()[i];
  return sum;
}

/// Checks that `gradient` is the derivative of loss() with respect to the elements of the fp64 tensor `x`, which loss()
/// reads. If x is large, `max_elements` evenly spaced elements are checked.
inline void expect_gradient(const std::function<double()>& loss, const Tensor& x, const Tensor& gradient,
                            const std::string& name, double relative = 1e-6, i64 max_elements = 64) {
  constexpr double kStep = 1e-4;
  ASSERT_EQ(x.numel(), gradient.numel()) << name;
  const i64 stride = std::max<i64>(1, x.numel() / max_elements);
  for (i64 i = 0; i < x.numel(); i += stride) {
    double& element = x.data<double>()[i];
    const double middle = element;
    element = middle + kStep;
    const double above = loss();
    element = middle - kStep;
    const double below = loss();
    element = middle;
    const double expected = (above - below) / (2 * kStep), actual = gradient.data<double>()[i];
    ASSERT_NEAR(actual, expected, relative * std::max(1.0, std::abs(expected))) << name << "[" << i << "]";
  }
}

}  // namespace mcpp::test

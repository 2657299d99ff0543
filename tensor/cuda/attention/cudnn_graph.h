// Operation graphs that cuDNN compiles into one kernel, through its C interface. A graph consists of values, some in
// memory and the others internal to the kernel, and of operations on them; a plan is the compiled graph.
#pragma once
#include <cudnn.h>

#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "tensor/cuda/attention/cudnn_layout.h"

namespace mcpp {

/// Throws Internal with cuDNN's text unless `status` is success.
void check_cudnn(cudnnStatus_t status, const char* call);

/// Owned descriptor of the library. Set its attributes first, then finalize it.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  cudnnBackendDescriptor_t raw() const { return raw_; }
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set_all(name, type, std::span(&value, 1));
  }
  template <class T, std::size_t N>
  void set_all(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<T, N> values) {
    check_cudnn(cudnnBackendSetAttribute(raw_, name, type, static_cast<i64>(values.size()), values.data()),
                "cudnnBackendSetAttribute");
  }
  void finalize() { check_cudnn(try_finalize(), "cudnnBackendFinalize"); }
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(raw_); }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

/// Value of a graph.
struct CudnnValue {
  cudnnBackendDescriptor_t raw = nullptr;
  CudnnShape shape;
};

/// Address of a graph's value while the plan runs: on the GPU, or on the host for scalars.
struct CudnnBinding {
  i64 id;
  const void* data;
};

class CudnnPlan {
 public:
  i64 workspace() const { return workspace_; }  ///< bytes required by run()
  void run(cudnnHandle_t handle, std::span<const CudnnBinding> bindings, void* workspace) const;

 private:
  friend class CudnnGraph;
  CudnnPlan(std::vector<CudnnDescriptor> parts, i64 workspace) : parts_(std::move(parts)), workspace_(workspace) {}

  std::vector<CudnnDescriptor> parts_;  // descriptors; the plan is last, after those from which it was made
  i64 workspace_;
};

/// Plan, or cuDNN's reason for rejecting the graph.
struct CudnnPlanResult {
  std::optional<CudnnPlan> plan;
  std::string rejection_reason;
};

class CudnnGraph {
 public:
  explicit CudnnGraph(cudnnHandle_t handle) : handle_(handle) {}

  /// Adds a value in memory, 16-byte aligned; `id` is below kFirstInner.
  CudnnValue in_memory(i64 id, const CudnnShape& shape, cudnnDataType_t type);
  /// Adds an fp32 scalar supplied by the host.
  CudnnValue scalar(i64 id);
  /// Adds a value that is never in memory.
  CudnnValue inner(const CudnnShape& shape, cudnnDataType_t type = CUDNN_DATA_FLOAT);

  /// Adds an operation f(x) or f(x, b), computed in fp32.
  CudnnValue pointwise(cudnnPointwiseMode_t f, const CudnnValue& x);
  CudnnValue pointwise(cudnnPointwiseMode_t f, const CudnnValue& x, const CudnnValue& b);
  void pointwise(cudnnPointwiseMode_t f, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y);
  /// Adds the operation y = x, converted to y's type.
  void copy(const CudnnValue& x, const CudnnValue& y);
  /// Adds an operation that selects x where the index on axis 2 is at least the index on axis 3, and `other` elsewhere.
  CudnnValue lower_triangle(const CudnnValue& x, const CudnnValue& other);
  /// Adds c = a b for each matrix of the last two axes; a may have more heads (axis 1) than b.
  void matmul(const CudnnValue& a, const CudnnValue& b, const CudnnValue& c);
  /// Reduces the axes on which y is smaller than x.
  void reduce(cudnnReduceTensorOp_t op, const CudnnValue& x, const CudnnValue& y);
  void reshape(const CudnnValue& x, const CudnnValue& y);

  /// Returns the first plan of the library's heuristics that compiles. Consumes the graph.
  CudnnPlanResult compile();

  static constexpr i64 kFirstInner = 1000;

 private:
  struct PointwiseOperands {
    const CudnnValue *x, *b = nullptr, *t = nullptr;
  };
  CudnnDescriptor& make(cudnnBackendDescriptorType_t type);
  CudnnValue value(i64 id, const CudnnShape& shape, cudnnDataType_t type, bool is_virtual, bool is_scalar);
  void add_pointwise(cudnnPointwiseMode_t f, cudnnDataType_t math, i64 axis, const PointwiseOperands& in,
                     const CudnnValue& y);
  void add_operation(CudnnDescriptor& operation);

  cudnnHandle_t handle_;
  std::vector<CudnnDescriptor> parts_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  i64 next_inner_ = kFirstInner;
};

}  // namespace mcpp

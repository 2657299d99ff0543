#include "tensor/cuda/attention/cudnn_graph.h"

namespace mcpp {

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  fail(ExitCode::Internal, call, ": ", cudnnGetErrorString(status), " ", detail.data());
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check_cudnn(cudnnBackendCreateDescriptor(type, &raw_), "cudnnBackendCreateDescriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (raw_) cudnnBackendDestroyDescriptor(raw_);
}

void CudnnPlan::run(cudnnHandle_t handle, std::span<const CudnnBinding> bindings, void* workspace) const {
  std::vector<i64> ids;
  std::vector<void*> pointers;
  for (const CudnnBinding& b : bindings) {
    ids.push_back(b.id);
    pointers.push_back(const_cast<void*>(b.data));
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::span(pointers));
  pack.set_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span(ids));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  check_cudnn(cudnnBackendExecute(handle, parts_.back().raw(), pack.raw()), "cudnnBackendExecute");
}

CudnnDescriptor& CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  return parts_.emplace_back(type);
}

CudnnValue CudnnGraph::value(i64 id, const CudnnShape& shape, cudnnDataType_t type, bool is_virtual, bool is_scalar) {
  constexpr i64 kAlignment = 16;
  CudnnDescriptor& d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  d.set_all(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span(shape.dims));
  d.set_all(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span(shape.strides));
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  if (is_virtual) d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  if (is_scalar) d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  d.finalize();
  return {d.raw(), shape};
}

CudnnValue CudnnGraph::in_memory(i64 id, const CudnnShape& shape, cudnnDataType_t type) {
  return value(id, shape, type, false, false);
}

CudnnValue CudnnGraph::scalar(i64 id) {
  return value(id, CudnnShape::dense(1, 1, 1, 1), CUDNN_DATA_FLOAT, false, true);
}

CudnnValue CudnnGraph::inner(const CudnnShape& shape, cudnnDataType_t type) {
  return value(next_inner_++, shape, type, true, false);
}

void CudnnGraph::add_operation(CudnnDescriptor& operation) {
  operation.finalize();
  operations_.push_back(operation.raw());
}

void CudnnGraph::add_pointwise(cudnnPointwiseMode_t f, cudnnDataType_t math, i64 axis, const PointwiseOperands& in,
                               const CudnnValue& y) {
  CudnnDescriptor& what = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  what.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, f);
  what.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
  if (f == CUDNN_POINTWISE_GEN_INDEX) what.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  what.finalize();
  const cudnnBackendDescriptor_t what_raw = what.raw();
  CudnnDescriptor& operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  const auto connect = [&](cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t raw) {
    operation.set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw);
  };
  connect(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what_raw);
  connect(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, in.x->raw);
  connect(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.raw);
  if (in.b) connect(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, in.b->raw);
  if (in.t) connect(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, in.t->raw);
  add_operation(operation);
}

CudnnValue CudnnGraph::pointwise(cudnnPointwiseMode_t f, const CudnnValue& x) {
  const CudnnValue y = inner(x.shape);
  add_pointwise(f, CUDNN_DATA_FLOAT, 0, {&x}, y);
  return y;
}

CudnnValue CudnnGraph::pointwise(cudnnPointwiseMode_t f, const CudnnValue& x, const CudnnValue& b) {
  const CudnnValue y = inner(x.shape);
  pointwise(f, x, b, y);
  return y;
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t f, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y) {
  add_pointwise(f, CUDNN_DATA_FLOAT, 0, {&x, &b}, y);
}

void CudnnGraph::copy(const CudnnValue& x, const CudnnValue& y) {
  add_pointwise(CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, 0, {&x}, y);
}

CudnnValue CudnnGraph::lower_triangle(const CudnnValue& x, const CudnnValue& other) {
  const CudnnValue row = inner(x.shape, CUDNN_DATA_INT32), column = inner(x.shape, CUDNN_DATA_INT32);
  add_pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, {&x}, row);
  add_pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, {&x}, column);
  const CudnnValue keep = inner(x.shape, CUDNN_DATA_BOOLEAN), y = inner(x.shape);
  add_pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, {&row, &column}, keep);
  add_pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, {&x, &other, &keep}, y);
  return y;
}

void CudnnGraph::matmul(const CudnnValue& a, const CudnnValue& b, const CudnnValue& c) {
  CudnnDescriptor& what = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  what.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  what.finalize();
  const cudnnBackendDescriptor_t what_raw = what.raw();
  CudnnDescriptor& operation = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, a.raw);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.raw);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, c.raw);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, what_raw);
  add_operation(operation);
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, const CudnnValue& x, const CudnnValue& y) {
  CudnnDescriptor& what = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  what.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  what.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  what.finalize();
  const cudnnBackendDescriptor_t what_raw = what.raw();
  CudnnDescriptor& operation = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x.raw);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, y.raw);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, what_raw);
  add_operation(operation);
}

void CudnnGraph::reshape(const CudnnValue& x, const CudnnValue& y) {
  CudnnDescriptor& operation = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x.raw);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, y.raw);
  add_operation(operation);
}

namespace {

CudnnPlanResult failed_result(const char* what, cudnnStatus_t status) {
  return {.plan = std::nullopt, .rejection_reason = std::string(what) + ": " + cudnnGetErrorString(status)};
}

/// Returns the engine configurations for the graph, most promising first; none, with the status, if the library has no
/// kernel.
std::vector<CudnnDescriptor> engine_configurations(cudnnBackendDescriptor_t graph, cudnnStatus_t& status) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  status = heuristics.try_finalize();
  if (status != CUDNN_STATUS_SUCCESS) return {};
  const auto get = [&](i64 capacity, i64& count, void* results) {
    check_cudnn(cudnnBackendGetAttribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         capacity, &count, results),
                "cudnnBackendGetAttribute");
  };
  i64 count = 0;
  get(0, count, nullptr);
  std::vector<CudnnDescriptor> engines;
  std::vector<cudnnBackendDescriptor_t> descriptors;
  for (i64 i = 0; i < count; ++i) descriptors.push_back(engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  get(static_cast<i64>(descriptors.size()), count, descriptors.data());
  while (static_cast<i64>(engines.size()) > count) engines.pop_back();
  return engines;
}

}  // namespace

CudnnPlanResult CudnnGraph::compile() {
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::span(operations_));
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  cudnnStatus_t status = graph.try_finalize();
  if (status != CUDNN_STATUS_SUCCESS) return failed_result("the graph of operations", status);
  std::vector<CudnnDescriptor> configurations = engine_configurations(graph.raw(), status);
  if (status != CUDNN_STATUS_SUCCESS) return failed_result("the choice of an engine", status);
  parts_.push_back(std::move(graph));
  cudnnStatus_t last = CUDNN_STATUS_NOT_SUPPORTED;
  for (CudnnDescriptor& configuration : configurations) {
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, configuration.raw());
    last = plan.try_finalize();
    if (last != CUDNN_STATUS_SUCCESS) continue;
    i64 workspace = 0, count = 0;
    check_cudnn(cudnnBackendGetAttribute(plan.raw(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                         &count, &workspace),
                "cudnnBackendGetAttribute");
    parts_.push_back(std::move(configuration));
    parts_.push_back(std::move(plan));
    return {.plan = CudnnPlan(std::move(parts_), workspace), .rejection_reason = {}};
  }
  return failed_result("plans of all engines", last);
}

}  // namespace mcpp

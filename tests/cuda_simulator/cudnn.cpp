// Interpreter of cuDNN's graph interface: computes every operation of a graph in double precision, rounded to the type
// of its result. Supports only graphs as small as the graphs in tests.
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/number_formats.h"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {
namespace {

using i64 = std::int64_t;
using Index = std::array<i64, 4>;

struct Graph;

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<char>> attributes = {};
  bool is_finalized = false;
  std::shared_ptr<const Graph> graph = nullptr;

  template <class T>
  std::vector<T> get_all(int name) const {
    const auto it = attributes.find(name);
    if (it == attributes.end()) return {};
    std::vector<T> values(it->second.size() / sizeof(T));
    std::memcpy(values.data(), it->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  T get(int name, T otherwise = {}) const {
    const auto values = get_all<T>(name);
    return values.empty() ? otherwise : values[0];
  }
};
Descriptor& descriptor(cudnnBackendDescriptor_t raw) {
  return *static_cast<Descriptor*>(raw);
}

/// Tensor of a graph: in memory, virtual, or a scalar of the host.
struct Value {
  i64 id = 0;
  Format format = Format::Unknown;
  std::vector<i64> dims, strides;
  bool is_virtual = false, is_scalar = false;
  i64 alignment = 1;

  i64 numel() const {
    i64 n = 1;
    for (const i64 d : dims) n *= d;
    return n;
  }
  /// Returns the position of an index in row-major order; sizes of 1 are broadcast.
  std::size_t dense(const Index& at) const {
    i64 position = 0;
    for (std::size_t k = 0; k < 4; ++k) position = position * dims[k] + (dims[k] == 1 ? 0 : at[k]);
    return static_cast<std::size_t>(position);
  }
  i64 offset(const Index& at) const {
    i64 position = 0;
    for (std::size_t k = 0; k < 4; ++k) position += at[k] * strides[k];
    return position;
  }
};

struct GraphOperation {
  cudnnBackendDescriptorType_t type;
  int mode = 0;
  i64 axis = -1;
  int x = -1, b = -1, selector = -1, y = -1;  ///< indices of values
};

struct Graph {
  std::vector<Value> values;
  std::vector<GraphOperation> operations;
};

thread_local std::string last_error;

Format format_of(int type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return Format::F32;
    case CUDNN_DATA_BFLOAT16:
      return Format::BF16;
    case CUDNN_DATA_HALF:
      return Format::F16;
    default:
      return Format::Unknown;
  }
}

/// Reader of an operation graph's descriptor.
class GraphParser {
 public:
  /// Returns null, and sets last_error, for graphs that the library refuses.
  std::shared_ptr<const Graph> parse(const Descriptor& description) {
    for (const auto raw : description.get_all<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      GraphOperation operation{descriptor(raw).type};
      if (!parse_operation(descriptor(raw), operation)) return nullptr;
      for (const int in : {operation.x, operation.b, operation.selector}) {
        if (in < 0 || !value(in).is_virtual || produced_.contains(in)) continue;
        last_error = "a virtual tensor that no operation produces";
        return nullptr;
      }
      produced_.insert(operation.y);
      graph_->operations.push_back(operation);
    }
    return graph_;
  }

 private:
  const Value& value(int index) const { return graph_->values[static_cast<std::size_t>(index)]; }

  bool parse_operation(const Descriptor& o, GraphOperation& operation) {
    const auto tensor = [&](int name) { return add_value(o.get<cudnnBackendDescriptor_t>(name)); };
    switch (o.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
        const Descriptor& f = descriptor(o.get<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
        operation.mode = f.get<int>(CUDNN_ATTR_POINTWISE_MODE);
        operation.axis = f.get<i64>(CUDNN_ATTR_POINTWISE_AXIS, -1);
        operation.x = tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        operation.b = tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        operation.selector = tensor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        operation.y = tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        return true;
      }
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        operation.x = tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        operation.b = tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        operation.y = tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        return check_matmul(value(operation.x), value(operation.b), value(operation.y));
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        operation.mode = descriptor(o.get<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATION_REDUCTION_DESC))
                             .get<int>(CUDNN_ATTR_REDUCTION_OPERATOR);
        operation.x = tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        operation.y = tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        return true;
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        operation.x = tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        operation.y = tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        return true;
      default:
        last_error = "an operation that is not simulated";
        return false;
    }
  }

  static bool check_matmul(const Value& a, const Value& b, const Value& c) {
    if (a.dims[3] == b.dims[2] && c.dims[2] == a.dims[2] && c.dims[3] == b.dims[3] && a.dims[1] % b.dims[1] == 0)
      return true;
    last_error = "the shapes of a GEMM do not fit";
    return false;
  }

  int add_value(cudnnBackendDescriptor_t raw) {
    if (!raw) return -1;
    if (const auto it = known_.find(raw); it != known_.end()) return it->second;
    const Descriptor& d = descriptor(raw);
    Value v;
    v.id = d.get<i64>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    v.format = format_of(d.get<int>(CUDNN_ATTR_TENSOR_DATA_TYPE));
    v.dims = d.get_all<i64>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    v.strides = d.get_all<i64>(CUDNN_ATTR_TENSOR_STRIDES);
    v.is_virtual = d.get<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
    v.is_scalar = d.get<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0;
    v.alignment = d.get<i64>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
    if (std::ranges::find(graph_->values, v.id, &Value::id) != graph_->values.end())
      report("cuDNN: two tensors of a graph have id %ld", v.id);
    graph_->values.push_back(v);
    return known_[raw] = static_cast<int>(graph_->values.size()) - 1;
  }

  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  std::map<void*, int> known_;
  std::set<int> produced_;
};

template <class F>
void for_each_index(const std::vector<i64>& dims, F&& f) {
  Index at;
  for (at[0] = 0; at[0] < dims[0]; ++at[0])
    for (at[1] = 0; at[1] < dims[1]; ++at[1])
      for (at[2] = 0; at[2] < dims[2]; ++at[2])
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) f(at);
}

/// Interpreter of one execution.
class Execution {
 public:
  Execution(const Graph& graph, const std::map<i64, void*>& addresses, const std::map<i64, float>& scalars)
      : graph_(graph), addresses_(addresses), numbers_(graph.values.size()) {
    std::set<int> produced;
    for (const GraphOperation& operation : graph.operations) produced.insert(operation.y);
    for (std::size_t i = 0; i < graph.values.size(); ++i) {
      const Value& v = graph.values[i];
      numbers_[i].assign(static_cast<std::size_t>(v.numel()), std::numeric_limits<double>::quiet_NaN());
      if (v.is_scalar)
        numbers_[i][0] = scalars.at(v.id);
      else if (!v.is_virtual && !produced.contains(static_cast<int>(i)))
        load(v, numbers_[i]);
    }
  }

  void run() {
    for (const GraphOperation& operation : graph_.operations) {
      if (operation.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        run_pointwise(operation);
      else if (operation.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        run_matmul(operation);
      else if (operation.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
        run_reduction(operation);
      else
        run_reshape(operation);
      const Value& y = value(operation.y);
      if (!y.is_virtual) store(y, numbers(operation.y));
    }
  }

 private:
  const Value& value(int index) const { return graph_.values[static_cast<std::size_t>(index)]; }
  std::vector<double>& numbers(int index) { return numbers_[static_cast<std::size_t>(index)]; }
  double read(int index, const Index& at) { return index < 0 ? 0 : numbers(index)[value(index).dense(at)]; }

  void load(const Value& v, std::vector<double>& to) const {
    const char* data = static_cast<const char*>(addresses_.at(v.id));
    for_each_index(v.dims, [&](const Index& at) {
      record_access(data + v.offset(at) * static_cast<i64>(size_of(v.format)), size_of(v.format), false);
      to[v.dense(at)] = load_element(data, v.offset(at), v.format);
    });
  }
  void store(const Value& v, const std::vector<double>& from) const {
    char* data = static_cast<char*>(addresses_.at(v.id));
    for_each_index(v.dims, [&](const Index& at) {
      record_access(data + v.offset(at) * static_cast<i64>(size_of(v.format)), size_of(v.format), true);
      store_element(data, v.offset(at), v.format, from[v.dense(at)]);
    });
  }

  double evaluate(const GraphOperation& o, const Index& at) {
    const double x = read(o.x, at), b = read(o.b, at);
    switch (o.mode) {
      case CUDNN_POINTWISE_MUL:
        return x * b;
      case CUDNN_POINTWISE_SUB:
        return x - b;
      case CUDNN_POINTWISE_ADD:
        return x + b;
      case CUDNN_POINTWISE_DIV:
        return x / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(x);
      case CUDNN_POINTWISE_LOG:
        return std::log(x);
      case CUDNN_POINTWISE_IDENTITY:
        return x;
      case CUDNN_POINTWISE_GEN_INDEX:
        return static_cast<double>(at[static_cast<std::size_t>(o.axis)]);
      case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
      case CUDNN_POINTWISE_BINARY_SELECT:
        return read(o.selector, at) != 0 ? x : b;
      default:
        report("cuDNN: pointwise mode %d is not simulated", o.mode);
        return 0;
    }
  }
  void run_pointwise(const GraphOperation& o) {
    const Value& y = value(o.y);
    for_each_index(y.dims, [&](const Index& at) { numbers(o.y)[y.dense(at)] = round_to(evaluate(o, at), y.format); });
  }

  void run_matmul(const GraphOperation& o) {
    const Value &a = value(o.x), &b = value(o.b), &c = value(o.y);
    const auto width = static_cast<std::size_t>(c.dims[3]);
    std::vector<double> row(width);
    const std::vector<i64> rows{c.dims[0], c.dims[1], c.dims[2], 1};
    for_each_index(rows, [&](const Index& at) {
      std::ranges::fill(row, 0.0);
      for (i64 k = 0; k < a.dims[3]; ++k) {
        const double factor = numbers(o.x)[a.dense({at[0], at[1], at[2], k})];
        const double* from = &numbers(o.b)[b.dense({at[0], at[1] * b.dims[1] / a.dims[1], k, 0})];
        for (std::size_t n = 0; n < width; ++n) row[n] += factor * from[n];
      }
      double* to = &numbers(o.y)[c.dense(at)];
      for (std::size_t n = 0; n < width; ++n) to[n] = round_to(row[n], c.format);
    });
  }

  void run_reduction(const GraphOperation& o) {
    const Value &x = value(o.x), &y = value(o.y);
    std::vector<double>& results = numbers(o.y);
    const bool adds = o.mode == CUDNN_REDUCE_TENSOR_ADD;
    std::ranges::fill(results, adds ? 0.0 : -std::numeric_limits<double>::infinity());
    for_each_index(x.dims, [&](const Index& at) {
      Index to;
      for (std::size_t k = 0; k < 4; ++k) to[k] = at[k] * y.dims[k] / x.dims[k];
      double& result = results[y.dense(to)];
      const double from = numbers(o.x)[x.dense(at)];
      result = adds ? result + from : std::fmax(result, from);
    });
    for (double& result : results) result = round_to(result, y.format);
  }

  /// Reads the memory of x with the strides of y.
  void run_reshape(const GraphOperation& o) {
    const Value &x = value(o.x), &y = value(o.y);
    i64 last = 0;
    for (std::size_t k = 0; k < 4; ++k) last += (x.dims[k] - 1) * x.strides[k];
    std::vector<double> memory(static_cast<std::size_t>(last) + 1, std::numeric_limits<double>::quiet_NaN());
    for_each_index(
        x.dims, [&](const Index& at) { memory[static_cast<std::size_t>(x.offset(at))] = numbers(o.x)[x.dense(at)]; });
    for_each_index(y.dims, [&](const Index& at) {
      numbers(o.y)[y.dense(at)] = round_to(memory.at(static_cast<std::size_t>(y.offset(at))), y.format);
    });
  }

  const Graph& graph_;
  const std::map<i64, void*>& addresses_;
  std::vector<std::vector<double>> numbers_;
};

std::size_t attribute_size(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    default:
      return 4;
  }
}

/// Returns the work of a graph of attention: two GEMMs in forward, five in backward.
AttentionCost cost_of(const Graph& graph) {
  AttentionCost cost{.flops = 0, .keys = 0, .heads = 1, .is_backward = false};
  int products = 0;
  bool is_causal = false;
  for (const GraphOperation& o : graph.operations) {
    is_causal |= o.mode == CUDNN_POINTWISE_GEN_INDEX && o.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    if (o.type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
    const Value &a = graph.values[static_cast<std::size_t>(o.x)], &c = graph.values[static_cast<std::size_t>(o.y)];
    cost.flops += 2.0 * static_cast<double>(c.numel()) * static_cast<double>(a.dims[3]);
    if (products++ == 0) cost.heads = c.dims[0] * c.dims[1], cost.keys = c.dims[3];
  }
  if (is_causal) cost.flops /= 2;
  cost.is_backward = products > 2;
  return cost;
}

struct Handle {
  cudaStream_t stream = nullptr;
};
Handle& handle_of(cudnnHandle_t handle) {
  return *reinterpret_cast<Handle*>(handle);
}

constexpr std::size_t kWorkspaceBytes = 4096;

/// Addresses and scalars of an execution; `error` is the reason why they do not match the graph.
struct Bindings {
  std::map<i64, void*> addresses;
  std::map<i64, float> scalars;
  std::string error;
};
Bindings bindings_of(const Graph& graph, const Descriptor& pack) {
  Bindings result;
  const auto ids = pack.get_all<i64>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.get_all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (std::size_t i = 0; i < ids.size() && i < pointers.size(); ++i) result.addresses[ids[i]] = pointers[i];
  if (result.addresses.size() != ids.size()) result.error = "an id occurs twice, or has no address";
  for (const Value& v : graph.values) {
    if (v.is_virtual) continue;
    const auto it = result.addresses.find(v.id);
    if (it == result.addresses.end() || !it->second)
      result.error = "tensor " + std::to_string(v.id) + " has no address";
    else if (v.is_scalar)
      std::memcpy(&result.scalars[v.id], it->second, sizeof(float));
    else if (reinterpret_cast<std::uintptr_t>(it->second) % static_cast<std::size_t>(v.alignment) != 0)
      result.error = "tensor " + std::to_string(v.id) + " is less aligned than its descriptor says";
  }
  return result;
}

}  // namespace
}  // namespace mcpp::cuda_simulator

using namespace mcpp::cuda_simulator;

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "not supported by the simulated library"
                                              : "an error of the simulated library";
}
void cudnnGetLastErrorString(char* to, std::size_t size) {
  if (size == 0) return;
  std::strncpy(to, last_error.c_str(), size - 1);
  to[size - 1] = '\0';
}
std::size_t cudnnGetVersion(void) {
  return CUDNN_VERSION;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete &handle_of(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle_of(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* raw) {
  *raw = new Descriptor{type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t raw) {
  delete &descriptor(raw);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t raw, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* from) {
  Descriptor& d = descriptor(raw);
  if (d.is_finalized) {
    report("cudnnBackendSetAttribute: the descriptor is finalized");
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (i64 i = 0; i < count; ++i) {
      if (descriptor(static_cast<const cudnnBackendDescriptor_t*>(from)[i]).is_finalized) continue;
      report("cudnnBackendSetAttribute: attribute %d is a descriptor that is not finalized", static_cast<int>(name));
      return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    }
  }
  const char* bytes = static_cast<const char*>(from);
  d.attributes[name].assign(bytes, bytes + static_cast<std::size_t>(count) * attribute_size(type));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t raw) {
  Descriptor& d = descriptor(raw);
  d.is_finalized = true;
  if (d.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    if (!settings().has_cudnn) return CUDNN_STATUS_NOT_SUPPORTED;
    d.graph = GraphParser().parse(d);
    return d.graph ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  }
  if (d.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
    d.graph = descriptor(d.get<cudnnBackendDescriptor_t>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)).graph;
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
    d.graph = descriptor(d.get<cudnnBackendDescriptor_t>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)).graph;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t raw, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t limit, int64_t* count, void* to) {
  const Descriptor& d = descriptor(raw);
  *count = 1;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    if (limit == 0) return CUDNN_STATUS_SUCCESS;
    Descriptor& configuration = descriptor(static_cast<cudnnBackendDescriptor_t*>(to)[0]);
    configuration.graph = d.graph;
    configuration.is_finalized = true;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) return CUDNN_STATUS_NOT_SUPPORTED;
  *static_cast<i64*>(to) = static_cast<i64>(kWorkspaceBytes);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t raw) {
  const std::shared_ptr<const Graph> graph = descriptor(plan).graph;
  const Descriptor& pack = descriptor(raw);
  void* const workspace = pack.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const Bindings bindings = bindings_of(*graph, pack);
  if (!bindings.error.empty() || !workspace) {
    report("cudnnBackendExecute: %s", workspace ? bindings.error.c_str() : "there is no workspace");
    return CUDNN_STATUS_BAD_PARAM;
  }
  enqueue(handle_of(handle).stream, {.name = "cudnnBackendExecute", .run = [=] {
                                       record_access(workspace, kWorkspaceBytes, true);
                                       std::memset(workspace, 0xA5, kWorkspaceBytes);
                                       if (cost_model()) spend(cost_model()->attention(cost_of(*graph)));
                                       if (settings().computes)
                                         Execution(*graph, bindings.addresses, bindings.scalars).run();
                                     }});
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"

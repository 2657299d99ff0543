#include "checkpoint/format/pickle_classes.h"

#include <algorithm>

namespace mcpp {
namespace {

/// Names of one module, separated by blanks.
struct ModuleNames {
  std::string_view module, names;
};

constexpr std::string_view kBuiltins =
    "set frozenset list dict tuple int float str bool complex bytes bytearray slice range object";
constexpr std::string_view kArrays = "_reconstruct scalar";
constexpr std::string_view kPaths = "Path PosixPath PurePath PurePosixPath";
constexpr std::string_view kEnums =
    "AttnBackend AttnMaskType AttnType CudaGraphScope CudaGraphModule LayerType ModelType Fp4Recipe Fp8Recipe";

constexpr ModuleNames kModules[]{
    {"builtins", kBuiltins},
    {"__builtin__", kBuiltins},
    {"collections", "OrderedDict defaultdict Counter deque"},
    {"argparse", "Namespace"},
    {"types", "SimpleNamespace"},
    {"_codecs", "encode"},
    {"copyreg", "_reconstructor"},
    {"copy_reg", "_reconstructor"},
    {"datetime", "timedelta datetime"},
    {"signal", "Signals"},
    {"pathlib", kPaths},
    {"pathlib._local", kPaths},
    {"numpy", "ndarray dtype"},
    {"numpy.core.multiarray", kArrays},
    {"numpy._core.multiarray", kArrays},
    {"numpy.core.numeric", "_frombuffer"},
    {"numpy._core.numeric", "_frombuffer"},
    {"torch",
     "Size device Tensor float64 double float32 float float16 half bfloat16 int64 long int32 int int16 short int8 "
     "uint8 uint16 uint32 uint64 bool complex32 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
     "float8_e5m2fnuz DoubleStorage FloatStorage HalfStorage BFloat16Storage LongStorage IntStorage ShortStorage "
     "CharStorage ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage"},
    {"torch.storage", "UntypedStorage TypedStorage"},
    {"torch._utils",
     "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.serialization", "_get_layout"},
    {"torch.distributed.checkpoint.metadata",
     "Metadata MetadataIndex StorageMeta TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata "
     "TensorProperties _MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.planner",
     "SavePlan WriteItem WriteItemType TensorWriteData BytesIOWriteData LoadPlan ReadItem LoadItemType"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix"},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties MEM_FORMAT_ENCODING"},
    {"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"},
    {"megatron.core.enums", kEnums},
    {"megatron.model.enums", kEnums},
    {"megatron.core.transformer.enums", kEnums},
    {"megatron.core.rerun_state_machine", "RerunMode RerunState RerunDiagnostic RerunErrorInjector"},
};

}  // namespace

bool is_known_pickle_class(std::string_view module, std::string_view name) {
  const auto found = std::ranges::find(kModules, module, &ModuleNames::module);
  if (found == std::end(kModules) || name.empty()) return false;
  for (std::string_view rest = found->names; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == name) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace mcpp

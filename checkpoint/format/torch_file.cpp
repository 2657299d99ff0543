#include "checkpoint/format/torch_file.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "checkpoint/format/shard.h"

namespace mcpp {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr std::string_view kModule = "torch.";

constexpr TorchType kTorchTypes[]{
    {"float64", "DoubleStorage", 8, SafeType::F64},
    {"float32", "FloatStorage", 4, SafeType::F32},
    {"float16", "HalfStorage", 2, SafeType::F16},
    {"bfloat16", "BFloat16Storage", 2, SafeType::BF16},
    {"int64", "LongStorage", 8, SafeType::Other, true},
    {"int32", "IntStorage", 4, SafeType::Other, true},
    {"int16", "ShortStorage", 2, SafeType::Other, true},
    {"int8", "CharStorage", 1, SafeType::Other, true},
    {"uint8", "ByteStorage", 1},
    {"bool", "BoolStorage", 1},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
    {"uint16", "", 2},
    {"uint32", "", 4},
    {"uint64", "", 8},
    {"float8_e4m3fn", "", 1},
    {"float8_e5m2", "", 1},
};

const TorchType* find_storage(std::string_view storage) {
  if (!storage.starts_with(kModule)) return nullptr;
  const auto found = std::ranges::find(kTorchTypes, storage.substr(kModule.size()), &TorchType::storage);
  return found == std::end(kTorchTypes) ? nullptr : found;
}

/// Checks that the bytes are a ZIP archive. Names other formats.
std::span<const std::byte> check_format(std::span<const std::byte> bytes, const std::string& source) {
  if (is_zip_archive(bytes)) return bytes;
  // A pickle of protocol 2 that begins with the magic number of the format before version 1.6.
  constexpr std::string_view kLegacy("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check_input(!text.starts_with(kLegacy), source,
              " has the format that torch.save wrote before PyTorch 1.6; load it with torch.load and save it again");
  fail(ExitCode::BadInput, source, " is not a file of torch.save: it does not begin like a ZIP archive");
}

/// Returns the folder in the archive that has data.pkl, with a slash.
std::string folder_of(const ZipArchive& archive, const std::string& source) {
  for (const ZipEntry& entry : archive.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash != std::string::npos && entry.name.substr(slash + 1) == kPickleName)
      return entry.name.substr(0, slash + 1);
  }
  fail(ExitCode::BadInput, source, ": the archive has no ", kPickleName, "; it is not a file of torch.save");
}

std::span<const std::byte> pickle_bytes(const ZipArchive& archive, const std::string& folder,
                                        const std::string& source) {
  if (const ZipEntry* order = archive.find(folder + "byteorder")) {
    const auto bytes = archive.read(*order);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    check_input(text == "little", source, ": has a byte order other than little, which is not supported");
  }
  return archive.read(*archive.find(folder + std::string(kPickleName)));
}

/// Returns a tuple of non-negative integers.
std::vector<i64> sizes_of(const PickleValue& value, const std::string& what) {
  check_input(value.is(PickleKind::Tuple), what, " is ", name_of(value.kind), " instead of a tuple");
  check_input(value.items.size() <= kMaxDimensions, what, " has ", value.items.size(), " dimensions; the maximum is ",
              kMaxDimensions);
  std::vector<i64> result;
  for (const PickleValue* item : value.items) {
    check_input(item->is(PickleKind::Integer) && item->integer >= 0, what, " has an invalid size");
    result.push_back(item->integer);
  }
  return result;
}

/// Returns the number of storage elements that a view needs; std::nullopt if it exceeds an i64.
std::optional<i64> storage_extent(const Shape& shape, const std::vector<i64>& strides) {
  i64 last = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0) return 0;
    i64 step = 0;
    if (__builtin_mul_overflow(shape[axis] - 1, strides[axis], &step) || __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  return last == std::numeric_limits<i64>::max() ? std::nullopt : std::optional(last + 1);
}

/// Returns the number of elements; std::nullopt if it exceeds an i64.
std::optional<i64> count_elements(const Shape& shape) {
  i64 elements = 1;
  for (const i64 size : shape)
    if (__builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
  return elements;
}

}  // namespace

const TorchType* find_torch_type(std::string_view dtype) {
  if (!dtype.starts_with(kModule)) return nullptr;
  const auto found = std::ranges::find(kTorchTypes, dtype.substr(kModule.size()), &TorchType::name);
  return found == std::end(kTorchTypes) ? nullptr : found;
}

void TorchTensor::copy(std::byte* to) const {
  const i64 size = type->size, elements = numel();
  if (elements == 0) return;
  // The longest contiguous end of the shape is copied at once.
  std::size_t axes = shape.size();
  i64 run = 1;
  while (axes > 0 && (shape[axes - 1] == 1 || strides[axes - 1] == run)) run *= shape[--axes];
  std::vector<i64> index(axes, 0);
  for (i64 done = 0; done < elements; done += run) {
    i64 from = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) from += index[axis] * strides[axis];
    std::memcpy(to + done * size, bytes.data() + from * size, static_cast<std::size_t>(run * size));
    for (std::size_t axis = axes; axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

std::optional<double> TorchTensor::number() const {
  if (numel() != 1) return std::nullopt;
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, bytes.data(), sizeof(T));
    return to_double(value);
  };
  if (type->type == SafeType::F64) return load(double{});
  if (type->type == SafeType::F32) return load(float{});
  if (type->type == SafeType::F16) return load(Float16{});
  if (type->type == SafeType::BF16) return load(BFloat16{});
  if (!type->is_signed_integer) return std::nullopt;
  i64 value = 0;
  std::memcpy(&value, bytes.data(), static_cast<std::size_t>(type->size));
  const i64 unused = 64 - 8 * type->size;
  return static_cast<double>(static_cast<i64>(static_cast<u64>(value) << unused) >> unused);
}

TorchFile::TorchFile(std::span<const std::byte> bytes, const std::string& source)
    : source_(source),
      archive_(check_format(bytes, source), source),
      folder_(folder_of(archive_, source)),
      pickle_(pickle_bytes(archive_, folder_, source), source) {}

std::optional<TorchTensor> TorchFile::tensor(const PickleValue& value, std::string_view name) const {
  if (value.is_object("torch._utils._rebuild_parameter") ||
      value.is_object("torch._utils._rebuild_parameter_with_state")) {
    const std::vector<const PickleValue*>& arguments = value.arguments->items;
    check_input(!arguments.empty() && !arguments[0]->text.starts_with("torch._utils._rebuild_parameter"), source_, ": ",
                name, " is a malformed parameter");
    return tensor(*arguments[0], name);
  }
  if (value.is_object("torch._utils._rebuild_tensor_v2") || value.is_object("torch._utils._rebuild_tensor_v3"))
    return rebuild(value, name);
  return std::nullopt;
}

std::span<const std::byte> TorchFile::storage(const PickleValue& reference, std::string_view& storage_class,
                                              std::string_view name) const {
  const bool is_reference = reference.is(PickleKind::Persistent) && reference.items[0]->items.size() == 5;
  check_input(is_reference && reference.items[0]->is(PickleKind::Tuple), source_, ": ", name, " has no storage");
  const std::vector<const PickleValue*>& parts = reference.items[0]->items;
  check_input(parts[0]->is_text("storage") && parts[1]->is(PickleKind::Class) && parts[2]->is(PickleKind::Text) &&
                  parts[4]->is(PickleKind::Integer),
              source_, ": ", name, " has a malformed storage");
  storage_class = parts[1]->text;
  const std::string key(parts[2]->text);
  const ZipEntry* entry = archive_.find(str(folder_, "data/", key));
  check_input(entry != nullptr, source_, ": ", name, " has the storage ", key, ", which is not in the archive");
  const TorchType* type = find_storage(storage_class);
  i64 bytes = 0;
  const bool is_valid = parts[4]->integer >= 0 &&
                        !__builtin_mul_overflow(parts[4]->integer, type ? type->size : 1, &bytes) &&
                        static_cast<u64>(bytes) <= entry->bytes.size();
  check_input(is_valid, source_, ": ", name, " has a storage of ", parts[4]->integer, " elements, but the archive has ",
              entry->bytes.size(), " bytes for it");
  return archive_.read(*entry).first(static_cast<std::size_t>(bytes));
}

TorchTensor TorchFile::rebuild(const PickleValue& object, std::string_view name) const {
  const std::vector<const PickleValue*>& arguments = object.arguments->items;
  const bool is_v3 = object.text.ends_with("v3");
  check_input(arguments.size() >= (is_v3 ? 7 : 6), source_, ": ", name, " is a malformed tensor");
  std::string_view storage_class;
  TorchTensor tensor;
  tensor.bytes = storage(*arguments[0], storage_class, name);
  tensor.type = is_v3 ? find_torch_type(arguments[6]->text) : find_storage(storage_class);
  check_input(tensor.type != nullptr, source_, ": ", name, " has the unknown type ",
              is_v3 ? arguments[6]->text : storage_class);
  tensor.shape = sizes_of(*arguments[2], str(source_, ": ", name, ": the shape"));
  tensor.strides = sizes_of(*arguments[3], str(source_, ": ", name, ": the list of strides"));
  check_input(tensor.shape.size() == tensor.strides.size(), source_, ": ", name, " has ", tensor.shape.size(),
              " sizes and ", tensor.strides.size(), " strides");
  const i64 available = static_cast<i64>(tensor.bytes.size()) / tensor.type->size;
  const std::optional<i64> needed = storage_extent(tensor.shape, tensor.strides),
                           elements = count_elements(tensor.shape);
  const bool has_offset = arguments[1]->is(PickleKind::Integer) && arguments[1]->integer >= 0;
  const i64 offset = has_offset ? arguments[1]->integer : 0;
  check_input(has_offset && needed && elements && offset <= available && *needed <= available - offset, source_, ": ",
              name, " of shape ", tensor.shape, " and strides ", tensor.strides, " reaches beyond its storage of ",
              available, " elements");
  // Otherwise a small file could describe a tensor that does not fit in memory.
  check_input(*elements <= available, source_, ": ", name, " of shape ", tensor.shape, " has more elements than its ",
              "storage, ", available, "; save a contiguous copy");
  tensor.bytes = tensor.bytes.subspan(static_cast<std::size_t>(offset * tensor.type->size));
  return tensor;
}

}  // namespace mcpp

#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "base/json.h"
#include "checkpoint/format/shard.h"
#include "tensor/ops/low_precision/float_codes.h"

namespace mcpp {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr u64 kMaxHeaderBytes = 100'000'000;

struct TypeInfo {
  std::string_view name;
  i64 size;
  SafeType type;
};
constexpr TypeInfo kSafeTypes[]{
    {"F64", 8, SafeType::F64},       {"F32", 4, SafeType::F32},        {"F16", 2, SafeType::F16},
    {"BF16", 2, SafeType::BF16},     {"I64", 8, SafeType::Other},      {"U64", 8, SafeType::Other},
    {"I32", 4, SafeType::Other},     {"U32", 4, SafeType::Other},      {"I16", 2, SafeType::Other},
    {"U16", 2, SafeType::Other},     {"I8", 1, SafeType::Other},       {"U8", 1, SafeType::U8},
    {"BOOL", 1, SafeType::Other},    {"F8_E5M2", 1, SafeType::F8E5M2}, {"F8_E4M3", 1, SafeType::F8E4M3},
    {"F8_E8M0", 1, SafeType::F8E8M0}};

const TypeInfo& type_info(const JsonObject& json) {
  const std::string& name = json.text("dtype");
  const auto it = std::ranges::find(kSafeTypes, name, &TypeInfo::name);
  check_input(it != std::end(kSafeTypes), json.source(), ": unknown dtype '", name, "'");
  return *it;
}

/// Parses one entry of a header, with offsets relative to the beginning of the file.
SafeTensor parse_tensor(const std::string& name, const JsonObject& json, std::size_t file, i64 data_begin) {
  const TypeInfo& type = type_info(json);
  SafeTensor tensor{name, type.type, json.integers("shape", kMaxDimensions), file, 0, 0};
  i64 bytes = type.size;
  for (const i64 size : tensor.shape) {
    check_input(!__builtin_mul_overflow(bytes, size, &bytes), json.source(), ": the shape ", tensor.shape,
                " is too large: 2^63 bytes or more");
  }
  const std::vector<i64> offsets = json.integers("data_offsets", 2);
  check_input(offsets.size() == 2 && offsets[0] <= offsets[1], json.source(), ": invalid data_offsets ", offsets);
  check_input(offsets[1] - offsets[0] == bytes, json.source(), ": data_offsets ", offsets, " do not fit shape ",
              tensor.shape, " of ", json.text("dtype"));
  check_input(offsets[1] <= std::numeric_limits<i64>::max() - data_begin, json.source(), ": invalid data_offsets ",
              offsets);
  tensor.begin = offsets[0] + data_begin, tensor.end = offsets[1] + data_begin;
  return tensor;
}

/// Throws unless the tensors are contiguous from `begin` to `end` without gap or overlap.
void check_cover(std::vector<SafeTensor> tensors, i64 begin, i64 end, const std::string& path) {
  std::ranges::sort(tensors, {}, [](const SafeTensor& t) { return std::pair(t.begin, t.end); });
  i64 position = begin;
  for (const SafeTensor& tensor : tensors) {
    check_input(tensor.begin == position, path, ": tensor ", tensor.name,
                tensor.begin < position ? " overlaps the previous tensor" : " leaves a gap after the previous tensor");
    position = tensor.end;
  }
  check_input(position == end, path, ": the header describes ", position - begin, " bytes of data, the file has ",
              end - begin);
}

std::vector<SafeTensor> parse_file(const MappedFile& content, std::size_t file) {
  const std::string path = content.path().string();
  const std::span<const std::byte> bytes = content.bytes();
  u64 header_size = 0;
  check_input(bytes.size() >= sizeof(header_size), path, " is too small for a safetensors file");
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  check_input(header_size <= kMaxHeaderBytes, path, ": the header of ", header_size, " bytes is larger than allowed, ",
              kMaxHeaderBytes);
  check_input(header_size <= bytes.size() - sizeof(header_size), path, ": the header of ", header_size,
              " bytes reaches beyond the end of the file");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_size), header_size);
  check_input(text.starts_with('{'), path, ": the header does not begin with {");

  const Json header = parse_json(text, path + ": header");
  const auto data_begin = static_cast<i64>(sizeof(header_size) + header_size);
  std::vector<SafeTensor> tensors;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(parse_tensor(name, {value, path + ": " + name}, file, data_begin));
  }
  check_cover(tensors, data_begin, static_cast<i64>(bytes.size()), path);
  return tensors;
}

template <class Stored>
void convert(std::span<const std::byte> from, Tensor& to) {
  on_float(to.dtype(), [&]<class T>() {
    T* out = to.data<T>();
    for (i64 i = 0; i < to.numel(); ++i) {
      Stored x;
      std::memcpy(&x, from.data() + i * static_cast<i64>(sizeof(Stored)), sizeof(Stored));
      if constexpr (std::is_same_v<Stored, T>)
        out[i] = x;
      else
        out[i] = from_double<T>(to_double(x));
    }
  });
}

/// Converts codes of one byte, whose values are exact in every type but fp16.
template <class Decode>
void convert_codes(std::span<const std::byte> from, Tensor& to, Decode&& decode) {
  on_float(to.dtype(), [&]<class T>() {
    T* out = to.data<T>();
    for (i64 i = 0; i < to.numel(); ++i) out[i] = T(decode(static_cast<u8>(from[static_cast<std::size_t>(i)])));
  });
}

std::string_view type_name(const SafeSpec& spec) {
  if (spec.is_fp8) return "F8_E4M3";
  switch (spec.dtype) {
    case DType::F32:
      return "F32";
    case DType::BF16:
      return "BF16";
    case DType::F16:
      return "F16";
    case DType::F64:
      return "F64";
    default:
      fail(ExitCode::Internal, "safetensors files support floating-point tensors only");
  }
}

/// Returns the header of a file with these tensors in this order, padded so that the data begin at a multiple of 8.
std::string header_of(const std::vector<SafeSpec>& specs, std::span<const std::size_t> order) {
  OrderedJson json;
  json["__metadata__"] = {{"format", "pt"}};
  i64 offset = 0;
  for (const std::size_t i : order) {
    const SafeSpec& spec = specs[i];
    json[spec.name] = {
        {"dtype", type_name(spec)}, {"shape", spec.shape}, {"data_offsets", {offset, offset + spec.bytes()}}};
    offset += spec.bytes();
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void write_file(const Path& path, const std::vector<SafeSpec>& specs, std::vector<std::size_t> order,
                const std::function<SafeData(std::size_t)>& data) {
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(-specs[i].element_size(), specs[i].name); });
  const std::string header = header_of(specs, order);
  const u64 header_size = header.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header_size, 1)));
  file.write(header);
  for (const std::size_t i : order) {
    const SafeData values = data(i);
    const std::span<const std::byte> bytes = values.bytes();
    MCPP_CHECK(specs[i].is_fp8 ? !values.tensor.defined() : values.tensor.dtype() == specs[i].dtype, specs[i].name);
    MCPP_CHECK(std::ssize(bytes) == specs[i].bytes(), specs[i].name);
    if (!bytes.empty()) file.write(bytes);
  }
  file.commit();
}

/// Splits the tensors, in order, into files of at most max_bytes; a larger tensor gets a separate file.
std::vector<std::vector<std::size_t>> split_files(const std::vector<SafeSpec>& specs, i64 max_bytes) {
  std::vector<std::vector<std::size_t>> files(1);
  i64 filled = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!files.back().empty() && filled + specs[i].bytes() > max_bytes) files.emplace_back(), filled = 0;
    files.back().push_back(i);
    filled += specs[i].bytes();
  }
  return files;
}

std::string numbered_name(std::size_t number, std::size_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return text.data();
}

}  // namespace

SafetensorsReader::SafetensorsReader(const Path& path) : path_(path) {
  if (!std::filesystem::is_directory(path)) {
    open_file(path);
  } else if (std::filesystem::exists(path / kSingleName)) {
    open_file(path / kSingleName);
    ignores_index_ = std::filesystem::exists(path / kIndexName);
  } else {
    check_input(std::filesystem::exists(path / kIndexName), path.string(), " has neither ", kSingleName, " nor ",
                kIndexName);
    open_index(path / kIndexName);
  }
  std::ranges::sort(tensors_, {}, &SafeTensor::name);
  for (std::size_t i = 1; i < tensors_.size(); ++i) {
    check_input(tensors_[i - 1].name != tensors_[i].name, path.string(), ": the tensor ", tensors_[i].name,
                " is in two files");
  }
}

void SafetensorsReader::open_file(const Path& path) {
  files_.emplace_back(path);
  std::vector<SafeTensor> tensors = parse_file(files_.back(), files_.size() - 1);
  std::ranges::move(tensors, std::back_inserter(tensors_));
}

void SafetensorsReader::open_index(const Path& path) {
  const Json parsed = parse_json(read_text_file(path), path.string());
  const JsonObject map = JsonObject(parsed, path.string()).object("weight_map");
  std::map<std::string, std::set<std::string>> names_by_file;
  for (const auto& [name, value] : map.json().items()) names_by_file[map.text(name)].insert(name);
  for (const auto& [file, names] : names_by_file) {
    check_input(Path(file).filename() == file && file != "..", path.string(), ": '", file,
                "' is not the name of a file in this folder");
    const std::size_t before = tensors_.size();
    open_file(path.parent_path() / file);
    std::set<std::string> stored_names;
    for (std::size_t i = before; i < tensors_.size(); ++i) stored_names.insert(tensors_[i].name);
    for (const std::string& name : names) {
      check_input(stored_names.contains(name), path.string(), ": the tensor ", name, " is not in ", file);
    }
  }
}

const SafeTensor* SafetensorsReader::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors_, name, {}, &SafeTensor::name);
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const SafeTensor& SafetensorsReader::at(std::string_view name) const {
  if (const SafeTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const SafeTensor& tensor : tensors_) names.push_back(tensor.name);
  const std::string nearest = nearest_name(name, names);
  fail(ExitCode::BadInput, path_.string(), " has no tensor ", name,
       nearest.empty() ? std::string() : "; the nearest is " + nearest);
}

std::span<const std::byte> SafetensorsReader::bytes(const SafeTensor& tensor) const {
  return files_[tensor.file].bytes().subspan(static_cast<std::size_t>(tensor.begin),
                                             static_cast<std::size_t>(tensor.end - tensor.begin));
}

std::span<const std::byte> SafeData::bytes() const {
  if (!tensor.defined()) return std::as_bytes(std::span(codes));
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.bytes())};
}

void convert_elements(std::span<const std::byte> stored, SafeType type, Tensor& to, const std::string& what) {
  switch (type) {
    case SafeType::F64:
      return convert<double>(stored, to);
    case SafeType::F32:
      return convert<float>(stored, to);
    case SafeType::BF16:
      return convert<BFloat16>(stored, to);
    case SafeType::F16:
      return convert<Float16>(stored, to);
    case SafeType::F8E4M3:
      return convert_codes(stored, to, [](u8 code) { return from_fp8(Fp8Format::E4M3, code); });
    case SafeType::F8E5M2:
      return convert_codes(stored, to, [](u8 code) { return from_fp8(Fp8Format::E5M2, code); });
    case SafeType::F8E8M0:
      return convert_codes(stored, to, from_e8m0);
    case SafeType::U8:
    case SafeType::Other:
      fail(ExitCode::BadInput, what,
           " has an element type that weights cannot have; F64, F32, F16, BF16 and F8 can be read");
  }
}

Tensor SafetensorsReader::read(const SafeTensor& tensor, DType dtype, Device& device) const {
  Tensor result = Tensor::empty(tensor.shape, dtype, device, MemoryClass::Other);
  convert_elements(bytes(tensor), tensor.type, result, files_[tensor.file].path().string() + ": " + tensor.name);
  return result;
}

void write_safetensors(const Path& folder, const std::vector<SafeSpec>& specs,
                       const std::function<SafeData(std::size_t)>& data, i64 max_file_bytes) {
  mcpp::create_directories(folder);
  const std::vector<std::vector<std::size_t>> files = split_files(specs, max_file_bytes);
  if (files.size() == 1) return write_file(folder / kSingleName, specs, files[0], data);
  OrderedJson index{{"metadata", {{"total_size", 0}}}, {"weight_map", OrderedJson::object()}};
  std::map<std::string, std::string> file_of;
  i64 total = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string name = numbered_name(f + 1, files.size());
    write_file(folder / name, specs, files[f], data);
    for (const std::size_t i : files[f]) file_of[specs[i].name] = name, total += specs[i].bytes();
  }
  index["metadata"]["total_size"] = total;
  index["weight_map"] = file_of;
  write_file_atomic(folder / kIndexName, index.dump(2) + "\n");
}

}  // namespace mcpp

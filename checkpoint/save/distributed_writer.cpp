#include "checkpoint/save/distributed_writer.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "checkpoint/format/zip_records.h"

namespace mcpp {
namespace {

constexpr const char* kDataName = "__0_0.distcp";
constexpr const char* kMetadataFile = ".metadata";
constexpr const char* kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kArchiveFolder = "archive/";

/// dtype and storage class of PyTorch.
struct TorchNames {
  const char *dtype, *storage;
};

TorchNames torch_names(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return {"float64", "DoubleStorage"};
    case DType::F32:
      return {"float32", "FloatStorage"};
    case DType::F16:
      return {"float16", "HalfStorage"};
    case DType::BF16:
      return {"bfloat16", "BFloat16Storage"};
    case DType::I32:
      return {"int32", "IntStorage"};
    case DType::I64:
      return {"int64", "LongStorage"};
  }
  fail(ExitCode::Internal, "unknown element type");
}

/// Returns the strides of a contiguous tensor.
std::vector<i64> strides_of(const Shape& shape) {
  std::vector<i64> strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * std::max<i64>(shape[axis], 1);
  return strides;
}

std::string tensor_pickle(const Tensor& values) {
  PickleWriter pickle;
  pickle.global("torch._utils", "_rebuild_tensor_v2").begin_tuple();
  pickle.begin_tuple().text("storage").global("torch", torch_names(values.dtype()).storage);
  pickle.text("0").text("cpu").integer(values.numel()).end_tuple().reference();
  pickle.integer(0).integers(values.shape()).integers(strides_of(values.shape())).boolean(false);
  pickle.global("collections", "OrderedDict").begin_tuple().end_tuple().call();
  return pickle.end_tuple().call().finish();
}

/// Builder of a ZIP archive whose last file may be large: its sizes, and the location of the directory, have 64 bits.
class ZipBuilder {
 public:
  /// Returns the header before the bytes of a file.
  std::string header(const std::string& name, std::span<const std::byte> bytes) {
    const Entry entry{
        .name = kArchiveFolder + name,
        .checksum = static_cast<u32>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size())),
        .size = bytes.size(),
        .offset = position_};
    std::string text = number<u32>(zip::kLocalSignature) + common(entry, sizes_field(entry, false)) + entry.name +
                       sizes_field(entry, false);
    position_ += text.size() + bytes.size();
    entries_.push_back(entry);
    return text;
  }
  /// Returns the end of the archive: its directory.
  std::string end() const {
    std::string directory;
    for (const Entry& entry : entries_) {
      const std::string field = sizes_field(entry, true);
      directory += number<u32>(zip::kEntrySignature) + number<u16>(zip::kZip64Version) + common(entry, field) +
                   number<u16>(0) + number<u16>(0) + number<u16>(0) + number<u32>(0) + number<u32>(zip::kIn64BitField) +
                   entry.name + field;
    }
    const u64 count = entries_.size(), after = position_ + directory.size();
    // The size of this record excludes its signature and the size itself.
    std::string text = directory + number<u32>(zip::kEnd64Signature) + number<u64>(zip::kEnd64Size - 12) +
                       number<u16>(zip::kZip64Version) + number<u16>(zip::kZip64Version) + number<u32>(0) +
                       number<u32>(0) + number<u64>(count) + number<u64>(count) + number<u64>(directory.size()) +
                       number<u64>(position_);
    text += number<u32>(zip::kLocatorSignature) + number<u32>(0) + number<u64>(after) + number<u32>(1);
    return text + number<u32>(zip::kEndSignature) + number<u32>(0) + number<u16>(zip::kIn64BitCount) +
           number<u16>(zip::kIn64BitCount) + number<u32>(zip::kIn64BitField) + number<u32>(zip::kIn64BitField) +
           number<u16>(0);
  }

 private:
  struct Entry {
    std::string name;
    u32 checksum = 0;
    u64 size = 0, offset = 0;
  };
  template <class T>
  static std::string number(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  /// Returns the ZIP64 field with the sizes and, in the directory, the offset.
  static std::string sizes_field(const Entry& entry, bool has_offset) {
    std::string text = number<u16>(zip::kZip64Field) + number<u16>(has_offset ? 24 : 16) + number<u64>(entry.size) +
                       number<u64>(entry.size);
    return has_offset ? text + number<u64>(entry.offset) : text;
  }
  /// Returns the members that both kinds of headers have, from the required version to the length of the fields.
  static std::string common(const Entry& entry, const std::string& field) {
    return number<u16>(zip::kZip64Version) + number<u16>(0) + number<u16>(0) + number<u32>(0) +
           number<u32>(entry.checksum) + number<u32>(zip::kIn64BitField) + number<u32>(zip::kIn64BitField) +
           number<u16>(static_cast<u16>(entry.name.size())) + number<u16>(static_cast<u16>(field.size()));
  }

  std::vector<Entry> entries_;
  u64 position_ = 0;
};

void add_size(PickleWriter& pickle, const Shape& shape) {
  pickle.global("torch", "Size").begin_tuple().integers(shape).end_tuple().call();
}

}  // namespace

DistributedWriter::DistributedWriter(const Path& folder)
    : folder_((mcpp::create_directories(folder), folder)), file_(folder / kDataName) {
  check_input(!std::filesystem::exists(folder / kMetadataFile), folder.string(),
              " already has a distributed checkpoint; use a different folder");
}

void DistributedWriter::append(std::string_view bytes) {
  file_.write(bytes);
  offset_ += static_cast<i64>(bytes.size());
}

void DistributedWriter::write_archive(const std::string& pickle, std::span<const std::byte> storage) {
  ZipBuilder zip;
  const auto add = [&](const std::string& name, std::span<const std::byte> bytes) {
    append(zip.header(name, bytes));
    append({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  add("data.pkl", bytes(pickle));
  add("byteorder", bytes("little"));
  add("version", bytes("3\n"));
  if (storage.data()) add("data/0", storage);
  append(zip.end());
}

void DistributedWriter::write(const std::vector<std::string>& path, const Tensor& values) {
  Item item{.path = path, .is_tensor = true, .dtype = values.dtype(), .shape = values.shape(), .offset = offset_};
  write_archive(tensor_pickle(values),
                {static_cast<const std::byte*>(values.raw()), static_cast<std::size_t>(values.bytes())});
  item.length = offset_ - item.offset;
  MCPP_CHECK(items_.emplace(join(path, "."), item).second, join(path, "."));
}

void DistributedWriter::write(const std::vector<std::string>& path, const PickleWriter& object) {
  Item item{.path = path, .offset = offset_};
  write_archive(object.finish(), {});
  item.length = offset_ - item.offset;
  MCPP_CHECK(items_.emplace(join(path, "."), item).second, join(path, "."));
}

void DistributedWriter::finish() {
  PickleWriter pickle;
  pickle.object(kMetadataModule, "Metadata").begin_dict().text("state_dict_metadata").begin_dict();
  for (const auto& [name, item] : items_) {
    pickle.text(name);
    if (!item.is_tensor) {
      pickle.object(kMetadataModule, "BytesStorageMetadata");
      continue;
    }
    pickle.object(kMetadataModule, "TensorStorageMetadata").begin_dict().text("properties");
    pickle.object(kMetadataModule, "TensorProperties").begin_tuple().global("torch", torch_names(item.dtype).dtype);
    pickle.global("torch.serialization", "_get_layout").begin_tuple().text("torch.strided").end_tuple().call();
    pickle.boolean(false).global(kMetadataModule, "_MEM_FORMAT_ENCODING").begin_tuple().integer(0).end_tuple().call();
    pickle.boolean(false).end_tuple().set_state();
    add_size(pickle.text("size"), item.shape);
    pickle.text("chunks").begin_list().object(kMetadataModule, "ChunkStorageMetadata").begin_dict();
    add_size(pickle.text("offsets"), Shape(item.shape.size(), 0));
    add_size(pickle.text("sizes"), item.shape);
    pickle.end_dict().set_state().end_list().end_dict().set_state();
  }
  pickle.end_dict().text("planner_data").begin_dict();
  for (const auto& [name, item] : items_) {
    pickle.text(name).begin_tuple();
    for (const std::string& key : item.path) pickle.text(key);
    pickle.end_tuple();
  }
  pickle.end_dict().text("storage_data").begin_dict();
  for (const auto& [name, item] : items_) {
    pickle.object(kMetadataModule, "MetadataIndex").begin_dict().text("fqn").text(name).text("offset");
    item.is_tensor ? add_size(pickle, Shape(item.shape.size(), 0)) : static_cast<void>(pickle.none());
    pickle.text("index");
    item.is_tensor ? pickle.integer(0) : pickle.none();
    pickle.end_dict().set_state();
    pickle.object("torch.distributed.checkpoint.filesystem", "_StorageInfo").begin_dict().text("relative_path");
    pickle.text(kDataName).text("offset").integer(item.offset).text("length").integer(item.length);
    pickle.end_dict().set_state();
  }
  pickle.end_dict().end_dict().set_state();
  file_.commit();
  write_file_atomic(folder_ / kMetadataFile, pickle.finish());
}

}  // namespace mcpp

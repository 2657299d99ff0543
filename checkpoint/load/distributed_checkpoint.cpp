#include "checkpoint/load/distributed_checkpoint.h"

#include <algorithm>

#include "base/check.h"
#include "checkpoint/format/shard.h"

namespace mcpp {
namespace {

constexpr std::string_view kMetadataName = ".metadata";
constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata.";

/// Returns a torch.Size; std::nullopt for other values.
std::optional<Shape> size_of_value(const PickleValue* value) {
  if (!value || !value->is_object("torch.Size") || value->arguments->items.size() != 1) return std::nullopt;
  Shape shape;
  for (const PickleValue* item : value->arguments->items[0]->items) {
    if (!item->is(PickleKind::Integer) || item->integer < 0 || shape.size() == kMaxDimensions) return std::nullopt;
    shape.push_back(item->integer);
  }
  return shape;
}

bool has_overflow(const Shape& shape) {
  i64 elements = 1;
  return std::ranges::any_of(shape, [&](i64 size) { return __builtin_mul_overflow(elements, size, &elements); });
}

}  // namespace

/// Reader of the pickle. Each function checks the structure that it descends into.
class DistributedCheckpoint::MetadataParser {
 public:
  MetadataParser(const Pickle& pickle, DistributedCheckpoint& checkpoint)
      : root_(pickle.root()), source_(pickle.source()), checkpoint_(checkpoint) {}

  void parse() {
    parse_storage();
    for_each(member(root_, "state_dict_metadata", "the metadata"),
             [&](const PickleValue& key, const PickleValue& value) {
               check_input(key.is(PickleKind::Text), source_, ": a tensor has a name that is not text");
               const std::string name(key.text);
               if (value.is_object(str(kModule, "BytesStorageMetadata")))
                 parse_object(name);
               else if (value.is_object(str(kModule, "TensorStorageMetadata")))
                 parse_tensor(name, value);
               else
                 fail(ExitCode::BadInput, source_, ": ", name, " is neither a tensor nor an object");
             });
    std::ranges::sort(checkpoint_.tensors_, {}, &FileTensor::name);
    check_disjoint();
  }

 private:
  const PickleValue& member(const PickleValue& of, std::string_view key, std::string_view what) const {
    const PickleValue* value = of.find(key);
    check_input(value != nullptr, source_, ": ", what, " has no ", key);
    return *value;
  }
  template <class F>
  void for_each(const PickleValue& dict, F&& f) const {
    check_input(dict.is(PickleKind::Dict), source_, ": has ", name_of(dict.kind), " instead of a dict");
    for (std::size_t i = 0; i < dict.items.size(); i += 2) f(*dict.items[i], *dict.items[i + 1]);
  }
  Shape shape(const PickleValue& of, std::string_view key, const std::string& name) const {
    const std::optional<Shape> shape = size_of_value(&member(of, key, name));
    check_input(shape.has_value(), source_, ": ", name, " has malformed ", key);
    return *shape;
  }

  /// Reads where the parts are, by name and offset.
  void parse_storage() {
    for_each(member(root_, "storage_data", "the metadata"), [&](const PickleValue& key, const PickleValue& value) {
      const PickleValue& name = member(key, "fqn", "a part");
      const std::string what(name.text);
      const PickleValue &path = member(value, "relative_path", what), &offset = member(value, "offset", what),
                        &length = member(value, "length", what);
      const PickleValue* transforms = value.find("transform_descriptors");
      check_input(!transforms || transforms->is(PickleKind::None) || transforms->items.empty(), source_, ": ", what,
                  " is compressed or otherwise transformed, which is not supported");
      const std::string file(path.text);
      check_input(!file.empty() && Path(file).filename() == file && file != ".." && file != ".", source_, ": ", what,
                  " is in ", file, ", which is not the name of a file in this folder");
      check_input(offset.is(PickleKind::Integer) && length.is(PickleKind::Integer) && offset.integer >= 0 &&
                      length.integer >= 0,
                  source_, ": ", what, " has an invalid offset or length");
      storage_[{what, size_of_value(key.find("offset"))}] = {file, offset.integer, length.integer};
    });
  }

  /// Items that share bytes would let small files describe large amounts of data.
  void check_disjoint() const {
    std::vector<Extent> extents;
    for (const auto& [name, extent] : storage_) extents.push_back(extent);
    std::ranges::sort(extents);
    for (std::size_t i = 1; i < extents.size(); ++i)
      check_input(
          extents[i - 1].file != extents[i].file || extents[i - 1].length <= extents[i].offset - extents[i - 1].offset,
          source_, ": two parts share bytes of ", extents[i].file);
  }

  Extent extent_of(const std::string& name, const std::optional<Shape>& offset) const {
    const auto found = storage_.find({name, offset});
    check_input(found != storage_.end(), source_, ": ", name, " has a part that is in no file");
    return found->second;
  }
  void parse_object(const std::string& name) {
    auto found = storage_.find({name, std::nullopt});
    if (found == storage_.end()) found = storage_.lower_bound({name, Shape{}});
    check_input(found != storage_.end() && found->first.first == name, source_, ": ", name, " is in no file");
    checkpoint_.objects_[name] = found->second;
  }

  void parse_tensor(const std::string& name, const PickleValue& value) {
    const PickleValue* properties = member(value, "properties", name).state;
    const PickleValue* dtype = nullptr;
    if (properties && properties->is(PickleKind::Tuple) && !properties->items.empty()) dtype = properties->items[0];
    if (properties && properties->is(PickleKind::Dict)) dtype = properties->find("dtype");
    Entry entry;
    entry.type = dtype ? find_torch_type(dtype->text) : nullptr;
    check_input(entry.type != nullptr, source_, ": ", name, " has an unknown element type");
    const Shape global = shape(value, "size", name);
    check_input(!has_overflow(global), source_, ": ", name, " has shape ", global, ", which is too large");
    const PickleValue& chunks = member(value, "chunks", name);
    check_input(chunks.is(PickleKind::List), source_, ": ", name, " has no list of parts");
    for (const PickleValue* chunk : chunks.items) {
      const Shape offset = shape(*chunk, "offsets", name), sizes = shape(*chunk, "sizes", name);
      const Box box{global, offset, sizes};
      check_input(offset.size() == global.size() && sizes.size() == global.size(), source_, ": ", name,
                  " has a part with a different number of dimensions");
      for (std::size_t axis = 0; axis < global.size(); ++axis)
        check_input(offset[axis] <= global[axis] && sizes[axis] <= global[axis] - offset[axis], source_, ": ", name,
                    " has a part at ", offset, " of size ", sizes, ", outside of its shape ", global);
      entry.chunks.push_back({box, extent_of(name, offset)});
    }
    checkpoint_.tensors_.push_back({name, entry.type->type, global});
    const bool is_new = checkpoint_.entries_.emplace(name, std::move(entry)).second;
    check_input(is_new, source_, ": ", name, " is stated twice");
  }

  const PickleValue& root_;
  const std::string& source_;
  DistributedCheckpoint& checkpoint_;
  std::map<std::pair<std::string, std::optional<Shape>>, Extent> storage_;
};

DistributedCheckpoint::DistributedCheckpoint(const Path& folder) : folder_(folder) {
  const Path path = folder / kMetadataName;
  const MappedFile content(path);
  const Pickle pickle(content.bytes(), path.string());
  MetadataParser(pickle, *this).parse();
}

bool DistributedCheckpoint::is_in(const Path& folder) {
  return std::filesystem::exists(folder / kMetadataName);
}

const MappedFile& DistributedCheckpoint::map(const std::string& name) {
  const auto found = files_.find(name);
  return found != files_.end() ? found->second : files_.emplace(name, MappedFile(folder_ / name)).first->second;
}

const TorchFile& DistributedCheckpoint::open(const Extent& extent) {
  if (open_ && open_->first == extent) return open_->second;
  const MappedFile& file = map(extent.file);
  const auto size = static_cast<i64>(file.bytes().size());
  check_input(extent.offset <= size && extent.length <= size - extent.offset, file.path().string(), " has ", size,
              " bytes, but ", kMetadataName, " refers to bytes from ", extent.offset, " to ",
              static_cast<u64>(extent.offset) + static_cast<u64>(extent.length), "; the file is truncated");
  open_.reset();
  const auto bytes =
      file.bytes().subspan(static_cast<std::size_t>(extent.offset), static_cast<std::size_t>(extent.length));
  open_.emplace(extent, TorchFile(bytes, str(file.path().string(), " at byte ", extent.offset)));
  return open_->second;
}

TorchTensor DistributedCheckpoint::read_chunk(std::string_view name, const Entry& entry, const Chunk& chunk) {
  const TorchFile& file = open(chunk.at);
  const std::optional<TorchTensor> tensor = file.tensor(file.root(), name);
  check_input(tensor.has_value(), file.source(), ": ", name, " is not a tensor");
  check_input(tensor->type == entry.type && tensor->shape == chunk.box.shape, file.source(), ": ", name, " is ",
              tensor->type->name, " of shape ", tensor->shape, ", but ", kMetadataName, " states ", entry.type->name,
              " of shape ", chunk.box.shape);
  return *tensor;
}

std::vector<const DistributedCheckpoint::Chunk*> DistributedCheckpoint::chunks_in(std::string_view name,
                                                                                  const Entry& entry, const Box& part) {
  std::vector<const Chunk*> chunks;
  i64 stored = 0;
  for (const Chunk& chunk : entry.chunks) {
    const std::optional<Box> common = intersection(chunk.box, part);
    if (!common) continue;
    for (const Chunk* other : chunks)
      check_input(!intersection(chunk.box, other->box), source(), ": ", name, " has parts that overlap");
    check_input(numel(chunk.box.shape) <= chunk.at.length / entry.type->size, source(), ": ", name, " has a part of ",
                numel(chunk.box.shape), " elements in ", chunk.at.length, " bytes");
    open(chunk.at);  // throws if the bytes are not in the file
    stored += numel(common->shape);
    chunks.push_back(&chunk);
  }
  check_input(stored == numel(part.shape), source(), ": ", name, " has only ", stored, " of ", numel(part.shape),
              " elements");
  return chunks;
}

Tensor DistributedCheckpoint::read(std::string_view name, const Box& part, DType dtype, Device& device) {
  at(name);  // throws if it is absent
  const Entry& entry = entries_.find(name)->second;
  const i64 size = entry.type->size;
  const std::vector<const Chunk*> chunks = chunks_in(name, entry, part);
  std::vector<std::byte> bytes(static_cast<std::size_t>(numel(part.shape) * size)), contiguous;
  for (const Chunk* chunk : chunks) {
    const TorchTensor values = read_chunk(name, entry, *chunk);
    contiguous.resize(static_cast<std::size_t>(values.numel() * size));
    values.copy(contiguous.data());
    copy_box(chunk->box, contiguous.data(), part, bytes.data(), size);
  }
  Tensor result = Tensor::empty(part.shape, dtype, device, MemoryClass::Other);
  convert_elements(bytes, entry.type->type, result, str(source(), ": ", name));
  return result;
}

const TorchFile* DistributedCheckpoint::object(std::string_view name) {
  const auto found = objects_.find(name);
  return found == objects_.end() ? nullptr : &open(found->second);
}

std::optional<double> DistributedCheckpoint::number(std::string_view name) {
  if (const auto found = entries_.find(name); found != entries_.end()) {
    if (found->second.chunks.size() != 1) return std::nullopt;
    return read_chunk(name, found->second, found->second.chunks[0]).number();
  }
  const TorchFile* file = object(name);
  if (!file) return std::nullopt;
  const PickleValue& value = file->root();
  if (value.is(PickleKind::Float)) return value.number;
  return value.is(PickleKind::Integer) ? std::optional(static_cast<double>(value.integer)) : std::nullopt;
}

}  // namespace mcpp

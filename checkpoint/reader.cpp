#include "checkpoint/reader.h"

#include <cstring>

#include "checkpoint/input_file.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

template <class From, class To>
void convert(const std::byte* from, std::byte* to, i64 count) {
  for (i64 i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * static_cast<i64>(sizeof(From)), sizeof(From));
    const To y = from_double<To>(to_double(x));
    std::memcpy(to + i * static_cast<i64>(sizeof(To)), &y, sizeof(To));
  }
}

/// Copies `count` elements; the addresses need not be aligned.
using RunCopier = void (*)(const std::byte* from, std::byte* to, i64 count);

RunCopier converter(DType from, DType to) {
  return on_float(
      from, [&]<class From>() { return on_float(to, [&]<class To>() -> RunCopier { return &convert<From, To>; }); });
}

/// Bytes from which on reading is faster than copying from a mapping, whose pages come one by one.
constexpr std::size_t kLongRun = std::size_t{1} << 16;

}  // namespace

struct CheckpointReader::OpenFile {
  MappedFile content;  // for runs of few elements
  InputFile file;      // for long ones
  Hdf5File layout;

  /// Where the numbers of a shard begin.
  i64 offset_of(const ShardEntry& shard, DType dtype) const {
    return layout.offset_of(shard.dataset, dtype, shard.numel());
  }

  void copy(i64 offset, std::span<std::byte> to) const {
    if (to.size() >= kLongRun)
      file.read(offset, to);
    else
      std::memcpy(to.data(), content.bytes().data() + offset, to.size());
  }
};

CheckpointReader::CheckpointReader(Path directory, Trust trust)
    : directory_(std::move(directory)),
      trust_(trust),
      manifest_(read_manifest(directory_)),
      files_(manifest_.files.size()) {}

CheckpointReader::~CheckpointReader() = default;

CheckpointReader::OpenFile& CheckpointReader::open(i64 file) {
  auto& slot = files_[static_cast<std::size_t>(file)];
  if (slot) return *slot;
  const FileEntry& entry = manifest_.files[static_cast<std::size_t>(file)];
  MappedFile content(directory_ / entry.name);
  const std::string path = content.path().string();
  check_input(static_cast<i64>(content.bytes().size()) == entry.bytes, path, " has ", content.bytes().size(),
              " bytes instead of ", entry.bytes);
  InputFile file_to_read(content.path());
  check_input(trust_ == Trust::Verified || file_to_read.checksum() == entry.checksum, path,
              " is damaged: it differs from its checksum in the manifest");
  Hdf5File layout(content.path());
  slot = std::make_unique<OpenFile>(OpenFile{std::move(content), std::move(file_to_read), std::move(layout)});
  return *slot;
}

bool CheckpointReader::holds(const ShardSpec& target) const {
  const TensorEntry* tensor = manifest_.find(target.name);
  if (!tensor || tensor->global != target.box.global || tensor->dtype != target.dtype) return false;
  i64 held = 0;
  for (const ShardEntry& shard : tensor->shards) held += overlap(shard, target);
  return held == target.numel();
}

void CheckpointReader::read(NamedShard& target, Conversion conversion) {
  if (target.data.device().type() == DeviceType::Cpu) return read_on_host(target, conversion);
  NamedShard copy = target;
  copy.data = Tensor::empty(target.data.shape(), target.data.dtype(), host_, MemoryClass::Other);
  read_on_host(copy, conversion);
  write_bytes(copy.data.raw(), target.data);
}

void CheckpointReader::read_on_host(NamedShard& target, Conversion conversion) {
  const TensorEntry& tensor = tensor_entry(manifest_, target.name, directory_);
  const DType stored = tensor.dtype, wanted = target.data.dtype();
  const std::string defect = defect_of(target);
  MCPP_CHECK(defect.empty(), target.name, ": ", defect);
  MCPP_CHECK(target.data.numel() == target.numel(), target.name);
  check_input(tensor.global == target.box.global, directory_.string(), ": ", target.name, " has shape ", tensor.global,
              ", this model needs ", target.box.global);
  check_input(stored == wanted || (conversion == Conversion::Convert && is_float(stored) && is_float(wanted)),
              directory_.string(), ": ", target.name, " is stored as ", name_of(stored), ", wanted is ",
              name_of(wanted));

  const RunCopier copier = stored == wanted ? nullptr : converter(stored, wanted);
  auto* to = static_cast<std::byte*>(target.data.raw());
  i64 filled = 0;
  for (const ShardEntry& shard : tensor.shards) {
    const OpenFile* from = nullptr;  // opened at the first run: most shards have nothing for this target
    i64 begin = 0;
    for_each_run(shard, target, [&](i64 from_at, i64 to_at, i64 count) {
      if (!from) from = &open(shard.file), begin = from->offset_of(shard, stored);
      const i64 source = begin + from_at * size_of(stored);
      std::byte* destination = to + to_at * size_of(wanted);
      if (copier)
        copier(from->content.bytes().data() + source, destination, count);
      else
        from->copy(source, {destination, static_cast<std::size_t>(count * size_of(stored))});
      filled += count;
    });
  }
  check_input(filled == target.numel(), directory_.string(), ": ", target.name, ": only ", filled, " of ",
              target.numel(), " elements are in the checkpoint");
}

Tensor CheckpointReader::read_whole(std::string_view name, Device& device) {
  const TensorEntry& tensor = tensor_entry(manifest_, name, directory_);
  NamedShard target(tensor.name, {tensor.global, Shape(tensor.global.size(), 0), tensor.global},
                    Tensor::empty(tensor.global, tensor.dtype, device, MemoryClass::Other));
  read(target);
  return target.data;
}

const TensorEntry& tensor_entry(const Manifest& manifest, std::string_view name, const Path& directory) {
  if (const TensorEntry* found = manifest.find(name)) return *found;
  std::vector<std::string> names;
  for (const TensorEntry& tensor : manifest.tensors) names.push_back(tensor.name);
  const std::string nearest = nearest_name(name, names);
  fail(ExitCode::BadInput, directory.string(), " has no tensor ", name,
       nearest.empty() ? std::string() : "; the nearest is " + nearest);
}

}  // namespace mcpp

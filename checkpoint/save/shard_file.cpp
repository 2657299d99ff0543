#include "checkpoint/save/shard_file.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/checksum.h"
#include "base/strings.h"
#include "checkpoint/format/block_io.h"
#include "checkpoint/format/hdf5.h"

namespace mcpp {
namespace {

/// Checked before writing: a disk that fills up later wastes time and leaves partial files, and exceeding the file size
/// limit would kill the process with a signal.
void check_space(const Path& path, i64 needed) {
  const i64 free = free_bytes(path.parent_path());
  check_input(needed <= free, "not enough space for ", path.string(), ": needs at most ", bytes_text(needed), ", free ",
              bytes_text(free),
              "; free some, or keep fewer checkpoints: lower checkpoint.keep_latest_k, or local_keep_latest_k in "
              "checkpoint.local_save");
  check_input(needed <= max_file_bytes(), path.string(), " needs ", bytes_text(needed),
              ", more than the limit of file sizes (ulimit -f) allows: ", bytes_text(max_file_bytes()));
}

Hdf5Dataset describe(const ShardSpec& shard, i64 number) {
  return {.path = str(shard.name, "/", number),
          .dtype = shard.dtype,
          .shape = shard.is_full_box() ? shard.box.shape : Shape{shard.numel()},
          .attributes = {{"global_shape", shard.box.global},
                         {"box_offset", shard.box.offset},
                         {"box_shape", shard.box.shape},
                         {"flat_range", {shard.flat_begin, shard.flat_end}}}};
}

/// Returns an upper bound of the file's size: data, page alignment of large datasets, and headers.
i64 estimate(std::span<const ShardSpec> shards) {
  constexpr i64 kPage = 4096;
  i64 bytes = i64{1} << 16;
  for (const ShardSpec& shard : shards) {
    if (shard.numel() == 0) continue;
    const i64 data_bytes = shard.numel() * size_of(shard.dtype);
    bytes += data_bytes + (data_bytes >= kPage ? kPage : 0) + 2048;
  }
  return bytes;
}

/// Writes data in the order of their offsets, so that one pass computes the checksum of the entire file: metadata that
/// HDF5 placed in between are read and written again.
class InOrderWriter {
 public:
  InOrderWriter(const Path& path, const FileSystem& files) : file_(path, files), size_(file_.size()), blocks_(file_) {
    file_.reserve(size_);
  }

  /// Returns the checksum of these bytes. Processes them in chunks, so that both checksums and the copy find them in
  /// the cache.
  std::string write(i64 offset, std::span<const std::byte> bytes) {
    constexpr std::size_t kChunk = std::size_t{1} << 17;
    add_existing(offset);
    Checksum checksum;
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(kChunk, bytes.size()))) {
      const std::span<const std::byte> chunk = bytes.first(std::min(kChunk, bytes.size()));
      checksum.update(chunk);
      add(chunk);
    }
    return checksum.hex();
  }

  FileEntry finish(std::string name) {
    add_existing(size_);
    blocks_.finish();
    file_.flush();
    return {std::move(name), size_, whole_.hex()};
  }

 private:
  void add(std::span<const std::byte> bytes) {
    whole_.update(bytes);
    blocks_.write(bytes);
    position_ += static_cast<i64>(bytes.size());
  }

  void add_existing(i64 end) {
    MCPP_CHECK(position_ <= end && end <= size_, "datasets overlap in the file");
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(end - position_, i64{1} << 20)));
    while (position_ < end) {
      const auto count = static_cast<std::size_t>(std::min(end - position_, static_cast<i64>(buffer.size())));
      file_.read(position_, std::span(buffer).first(count));
      add(std::span(buffer).first(count));
    }
  }

  OutputFile file_;
  i64 size_, position_ = 0;
  Checksum whole_;
  BlockWriter blocks_;
};

/// Returns the tensor's bytes after verifying that the source returned the declared shard.
std::span<const std::byte> bytes_of(const Tensor& data, const ShardSpec& shard) {
  MCPP_CHECK(data.defined() && data.dtype() == shard.dtype && data.numel() == shard.numel(), shard.name, ": expected ",
             shard.numel(), " ", name_of(shard.dtype));
  MCPP_CHECK(data.device().type() == DeviceType::Cpu, shard.name, " is not in host memory");
  return {static_cast<const std::byte*>(data.raw()), static_cast<std::size_t>(data.bytes())};
}

}  // namespace

Manifest write_shard_file(const Path& path, ShardSource& source, const FileSystem& files) {
  const std::span<const ShardSpec> shards = source.shards();
  std::vector<std::size_t> order;  // the shards to write, as indices into `shards`
  std::vector<Hdf5Dataset> datasets;
  std::map<std::string, i64> shards_of_name;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string defect = find_defect(shards[i]);
    MCPP_CHECK(defect.empty(), shards[i].name, ": ", defect);
    if (shards[i].numel() == 0) continue;
    order.push_back(i);
    datasets.push_back(describe(shards[i], shards_of_name[shards[i].name]++));
  }
  if (order.empty()) return {};

  check_space(path, estimate(shards));
  const std::vector<i64> offsets = create_hdf5(path, datasets);
  std::vector<std::size_t> by_offset(order.size());
  std::iota(by_offset.begin(), by_offset.end(), std::size_t{0});
  std::ranges::sort(by_offset, {}, [&](std::size_t i) { return offsets[i]; });

  InOrderWriter writer(path, files);
  std::vector<std::string> checksums(order.size());
  for (const std::size_t i : by_offset) {
    const Tensor data = source.data(order[i]);
    checksums[i] = writer.write(offsets[i], bytes_of(data, shards[order[i]]));
  }

  Manifest manifest;
  manifest.files.push_back(writer.finish(path.filename().string()));
  std::map<std::string, TensorEntry> tensors;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const ShardSpec& shard = shards[order[i]];
    TensorEntry& tensor = tensors[shard.name];
    MCPP_CHECK(tensor.shards.empty() || (tensor.dtype == shard.dtype && tensor.global == shard.box.global), shard.name,
               ": two shards differ in element type or global shape");
    tensor.name = shard.name, tensor.dtype = shard.dtype, tensor.global = shard.box.global;
    tensor.shards.push_back({static_cast<const Region&>(shard), 0, datasets[i].path, checksums[i]});
  }
  for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  return manifest;
}

}  // namespace mcpp

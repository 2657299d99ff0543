#include "megatron_cpp/resume/part_transfer.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/integer_math.h"
#include "base/io/file_system.h"
#include "base/number_format.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/format/manifest.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

void check_space(const Path& directory, const PartHeader& header) {
  const i64 needed = std::accumulate(header.bytes.begin(), header.bytes.end(), i64{0}),
            free = free_bytes(nearest_existing(directory));
  check_input(needed <= free, "not enough space for a copy of a local checkpoint in ", directory.parent_path().string(),
              ": needs ", human_bytes(static_cast<double>(needed)), ", free ", human_bytes(static_cast<double>(free)),
              "; free some space, or lower checkpoint.local_keep_latest_k or checkpoint.local_replicas");
}

}  // namespace

std::string PartHeader::name(std::size_t file) const {
  if (file == 0) return std::string(kManifestName);
  if (file == 1) return std::string(kManifestChecksumName);
  const std::string name(shards_name.data(), ::strnlen(shards_name.data(), shards_name.size()));
  check_input(!name.empty() && name.size() < shards_name.size() && Path(name).filename() == name && name[0] != '.',
              "a part of a local checkpoint has a file with the invalid name '", name,
              "'; expected the name of a file in its folder");
  return name;
}

PartFiles::PartFiles(const Path& part) {
  try {
    const Manifest manifest = read_manifest(part);
    check_input(manifest.files.size() <= 1, part.string(), ": has more files than a rank writes");
    std::vector<std::string> names{std::string(kManifestName), std::string(kManifestChecksumName)};
    if (!manifest.files.empty()) {
      names.push_back(manifest.files[0].name);
      std::snprintf(header_.shards_name.data(), header_.shards_name.size(), "%s", names.back().c_str());
    }
    for (std::size_t file = 0; file < names.size(); ++file)
      header_.bytes[file] = static_cast<i64>(fs::file_size(part / names[file]));
    header_.is_readable = 1;
  } catch (const std::exception&) {  // the receiver uses a different copy
    header_ = {};
  }
}

void PartFiles::allocate() {
  for (const i64 bytes : header_.bytes) {
    if (bytes > 0)
      buffers_.push_back(Tensor::empty({ceil_div(bytes, size_of(DType::I32))}, DType::I32, host_, MemoryClass::Other));
  }
}

bool PartFiles::read(const Path& part) {
  allocate();
  bool is_complete = true;
  auto buffer = buffers_.begin();
  for (std::size_t file = 0; file < PartHeader::kFiles; ++file) {
    if (header_.bytes[file] == 0) continue;
    std::ifstream stream(part / header_.name(file), std::ios::binary);
    stream.read(static_cast<char*>((buffer++)->raw()), header_.bytes[file]);
    is_complete = is_complete && stream.gcount() == header_.bytes[file];
  }
  return is_complete;
}

void PartFiles::write(const Path& directory) const {
  check_space(directory, header_);
  mcpp::create_directories(directory);
  auto buffer = buffers_.begin();
  for (std::size_t file = 0; file < PartHeader::kFiles; ++file) {
    if (header_.bytes[file] == 0) continue;
    AtomicFile output(directory / header_.name(file));
    const auto* bytes = static_cast<const std::byte*>((buffer++)->raw());
    output.write(std::span(bytes, static_cast<std::size_t>(header_.bytes[file])));
    output.commit();
  }
  fsync_path(directory);
}

PartSend::PartSend(std::shared_ptr<PartFiles> files, Communicator& group, int destination)
    : files_(std::move(files)), group_(group), destination_(destination) {
  send_value(files_->header(), group_, destination_);
}

void PartSend::start() {
  for (const Tensor& buffer : files_->buffers()) works_.push_back(group_.send(buffer, destination_));
}

void PartSend::wait() {
  for (Work& work : works_) work.wait();
  works_.clear();
}

PartReceive::PartReceive(Path directory, Communicator& group, int source)
    : directory_(std::move(directory)),
      group_(group),
      source_(source),
      files_(receive_value<PartHeader>(group, source)) {}

PartReceive::~PartReceive() {
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

void PartReceive::reserve() {
  check_space(directory_, files_.header());
  files_.allocate();
}

void PartReceive::start() {
  for (Tensor& buffer : files_.buffers()) works_.push_back(group_.recv(buffer, source_));
}

void PartReceive::wait() {
  for (Work& work : works_) work.wait();
  works_.clear();
}

std::string PartReceive::write_and_verify() {
  if (!files_.is_readable()) return "it cannot be read where it is stored";
  files_.write(directory_);
  files_.buffers().clear();
  return join(find_problems(directory_), "\n");
}

void PartReceive::publish(const Path& part) const {
  publish_part(directory_, part);
}

void publish_part(const Path& directory, const Path& part) {
  std::error_code error;
  fs::remove_all(part, error);
  fs::rename(directory, part, error);
  check_input(!error, "cannot rename ", directory.string(), " to ", part.string(), ": ", error.message());
  fsync_path(part.parent_path());
  advance_latest(part);
}

std::string part_folder_name(int rank, int ranks, bool is_replica) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "%s_%05d-of-%05d", is_replica ? "replica" : "rank", rank, ranks);
  return name.data();
}

}  // namespace mcpp

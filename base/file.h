// Files: read-only maps, whole reads, atomic replacement, checksums. All errors name the path and the system's reason.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

using Path = std::filesystem::path;

/// A file mapped read-only into memory; move-only, unmapped when destroyed. An empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const Path& path);  ///< BadInput when it cannot be opened
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const Path& path() const { return path_; }

 private:
  Path path_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Writes to a file without a name; commit() makes it durable (fsync) and gives it the name `path`. A reader of that
/// sees the old content, or all of the new, never a part, and who is killed leaves nothing; but on file systems without
/// such files (NFS) a temporary_name() (machine.h). Threads, processes, hosts may write one path at once: the last one
/// stays. A link to a file stays one. BadInput for the path of a device or pipe.
class AtomicFile {
 public:
  explicit AtomicFile(Path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  ///< appends; throws on a short write or a full disk
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void write_at(u64 offset, std::span<const std::byte> bytes);
  void commit();

 private:
  Path path_, temporary_;
  int descriptor_ = -1;
};

std::string read_text_file(const Path& path);                        ///< BadInput when it cannot be read
void write_file_atomic(const Path& path, std::string_view content);  ///< through AtomicFile
void fsync_path(const Path& path);          ///< makes a file, or a directory's entries, durable
void create_directories(const Path& path);  ///< BadInput with the reason when it cannot

/// XXH3-128 of the bytes, as 32 hexadecimal digits.
std::string checksum_hex(std::span<const std::byte> bytes);

}  // namespace mcpp

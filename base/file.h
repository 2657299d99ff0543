// File access: read-only maps, reads of complete files, atomic replacement, checksums. All errors name the path and the
// system's reason.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

using Path = std::filesystem::path;

/// File mapped read-only into memory. Move-only; unmapped on destruction. An empty file yields an empty span.
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

/// Atomically replaces a file. Writes go to an unnamed file; commit() makes it durable (fsync) and publishes it as
/// `path`.
///  - Readers see either the old or the complete new content.
///  - A killed process leaves no temporary file, except on file systems without unnamed files (NFS), where
///    temporary_name() (machine.h) is used.
///  - Threads, processes and hosts may write one path concurrently; the last commit wins.
///  - A symbolic link to a file is preserved.
///  - Throws BadInput for the path of a device or pipe.
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

std::string read_text_file(const Path& path);                        ///< throws BadInput if it cannot be read
void write_file_atomic(const Path& path, std::string_view content);  ///< atomically replaces the file (AtomicFile)
void fsync_path(const Path& path);          ///< makes a file or the entries of a directory durable
void create_directories(const Path& path);  ///< throws BadInput with the reason on failure

/// Returns the XXH3-128 checksum of `bytes` as 32 hexadecimal digits.
std::string checksum_hex(std::span<const std::byte> bytes);

// Detection of broken symbolic links.

/// Throws BadInput, with the system's reason and the target of a link, unless `path` resolves to an existing entry.
void check_path_exists(const Path& path);

// Direct I/O, which bypasses the system's page cache.

/// Opens a file with O_DIRECT and the given open(2) flags. Returns -1 if that is unsupported or the file system is not
/// known to be on a disk: the cache of a network file system keeps many transfers in flight, while direct I/O would
/// wait for each. Callers that keep many transfers in flight themselves, such as offload to a user-chosen disk, need
/// not use this function.
int open_direct(const Path& path, int flags);

}  // namespace mcpp

// Reader of ZIP archives without compression, as torch.save writes them.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// File of an archive.
struct ZipEntry {
  std::string name;
  std::span<const std::byte> bytes;
  u32 checksum = 0;  ///< CRC-32 of the bytes; 0 if the writer did not compute it
};

class ZipArchive {
 public:
  /// Reads the directory of the archive `bytes`, which must outlive this object. `source` names it in messages.
  /// Archives are untrusted: throws BadInput for compressed, encrypted or overlapping entries, for duplicate names, and
  /// for sizes or offsets beyond the end.
  ZipArchive(std::span<const std::byte> bytes, std::string source);

  const std::vector<ZipEntry>& entries() const { return entries_; }  ///< sorted by name
  const ZipEntry* find(std::string_view name) const;                 ///< nullptr if absent
  /// Returns the bytes of an entry. Throws BadInput, on the first call for the entry, if they differ from its checksum.
  std::span<const std::byte> read(const ZipEntry& entry) const;

 private:
  std::string source_;
  std::vector<ZipEntry> entries_;
  mutable std::vector<bool> is_verified_;  // by entry
};

/// Returns true if the bytes begin like a ZIP archive.
bool is_zip_archive(std::span<const std::byte> bytes);

}  // namespace mcpp

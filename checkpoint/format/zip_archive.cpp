#include "checkpoint/format/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "checkpoint/format/zip_records.h"

namespace mcpp {
namespace {

constexpr u64 kMaxComment = 0xffff;
constexpr u16 kEncrypted = 1;
constexpr u64 kMaxEntries = 10'000'000;

/// Location of the list of entries.
struct Directory {
  u64 offset = 0, size = 0, entries = 0;
};

class DirectoryParser {
 public:
  DirectoryParser(std::span<const std::byte> bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  std::vector<ZipEntry> parse() const {
    const Directory directory = find_directory();
    require(directory.offset <= bytes_.size() && directory.size <= bytes_.size() - directory.offset,
            "the list of entries is beyond the end");
    require(directory.entries <= kMaxEntries && directory.entries <= directory.size / zip::kEntrySize,
            "the list of entries is too short for ", directory.entries, " entries");
    std::vector<ZipEntry> entries;
    u64 at = directory.offset;
    for (u64 i = 0; i < directory.entries; ++i)
      entries.push_back(parse_entry(at, directory.offset + directory.size, directory.offset));
    check_disjoint(entries);
    std::ranges::sort(entries, {}, &ZipEntry::name);
    const auto twin = std::ranges::adjacent_find(entries, {}, &ZipEntry::name);
    require(twin == entries.end(), "two entries have the name ", twin == entries.end() ? "" : twin->name);
    return entries;
  }

 private:
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    check_input(condition, source_, ": damaged or unsupported ZIP archive: ", parts...);
  }
  template <class T>
  T number(u64 at) const {
    T value;
    require(at <= bytes_.size() && sizeof(T) <= bytes_.size() - at, "it ends early");
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }

  Directory find_directory() const {
    require(bytes_.size() >= zip::kEndSize, "it is too short");
    const u64 last = bytes_.size() - zip::kEndSize, first = last > kMaxComment ? last - kMaxComment : 0;
    u64 at = last;
    while (number<u32>(at) != zip::kEndSignature || number<u16>(at + 20) != bytes_.size() - at - zip::kEndSize) {
      require(at > first, "it has no end record; the file may be truncated");
      --at;
    }
    Directory directory{.offset = number<u32>(at + 16), .size = number<u32>(at + 12), .entries = number<u16>(at + 10)};
    if (at < zip::kLocatorSize || number<u32>(at - zip::kLocatorSize) != zip::kLocatorSignature) return directory;
    const auto end64 = number<u64>(at - zip::kLocatorSize + 8);
    require(end64 <= bytes_.size() - zip::kEnd64Size && number<u32>(end64) == zip::kEnd64Signature,
            "its ZIP64 end record is missing");
    return {.offset = number<u64>(end64 + 48), .size = number<u64>(end64 + 40), .entries = number<u64>(end64 + 32)};
  }

  /// Replaces values that are in the ZIP64 field, in the order in which they occur in it.
  void read_zip64(u64 field, u64 end, std::span<u64* const> values) const {
    while (field + 4 <= end) {
      const u64 size = number<u16>(field + 2), data = field + 4;
      require(data + size <= end, "an entry has a malformed extra field");
      if (number<u16>(field) == zip::kZip64Field) {
        u64 at = data;
        for (u64* value : values) {
          if (*value != zip::kIn64BitField) continue;
          require(at + sizeof(u64) <= data + size, "an entry lacks a 64-bit size or offset");
          *value = number<u64>(at);
          at += sizeof(u64);
        }
        return;
      }
      field = data + size;
    }
  }

  /// Parses the entry at `at`, and moves `at` to the next one.
  ZipEntry parse_entry(u64& at, u64 end, u64 data_end) const {
    require(at + zip::kEntrySize <= end && number<u32>(at) == zip::kEntrySignature, "the list of entries is malformed");
    const u64 name_size = number<u16>(at + 28), extra_size = number<u16>(at + 30), comment_size = number<u16>(at + 32);
    const u64 next = at + zip::kEntrySize + name_size + extra_size + comment_size;
    require(next <= end, "the list of entries is malformed");
    ZipEntry entry{.name = text(at + zip::kEntrySize, name_size), .bytes = {}, .checksum = number<u32>(at + 16)};
    require(number<u16>(at + 10) == 0, entry.name, " is compressed; torch.save does not compress");
    require((number<u16>(at + 8) & kEncrypted) == 0, entry.name, " is encrypted");
    u64 stored = number<u32>(at + 20), size = number<u32>(at + 24), local = number<u32>(at + 42);
    read_zip64(at + zip::kEntrySize + name_size, at + zip::kEntrySize + name_size + extra_size,
               std::array<u64*, 3>{&size, &stored, &local});
    require(stored == size, entry.name, " has two different sizes");
    require(local <= data_end && zip::kLocalSize <= data_end - local && number<u32>(local) == zip::kLocalSignature,
            entry.name, " has an invalid offset");
    const u64 local_name = number<u16>(local + 26),
              begin = local + zip::kLocalSize + local_name + number<u16>(local + 28);
    require(begin <= data_end && size <= data_end - begin, entry.name, " has ", size,
            " bytes, which reach beyond the end");
    require(text(local + zip::kLocalSize, local_name) == entry.name, entry.name,
            " has a different name before its data");
    entry.bytes = bytes_.subspan(begin, size);
    at = next;
    return entry;
  }

  std::string text(u64 at, u64 size) const {
    require(at <= bytes_.size() && size <= bytes_.size() - at, "it ends early");
    return {reinterpret_cast<const char*>(bytes_.data()) + at, static_cast<std::size_t>(size)};
  }

  /// Entries that share bytes would let a small file describe large amounts of data.
  void check_disjoint(std::vector<ZipEntry> entries) const {
    std::erase_if(entries, [](const ZipEntry& entry) { return entry.bytes.empty(); });
    std::ranges::sort(entries, {}, [](const ZipEntry& entry) { return entry.bytes.data(); });
    for (std::size_t i = 1; i < entries.size(); ++i) {
      const auto previous = entries[i - 1].bytes;
      require(previous.data() + previous.size() <= entries[i].bytes.data(), entries[i - 1].name, " and ",
              entries[i].name, " overlap");
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& source_;
};

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> bytes, std::string source)
    : source_(std::move(source)),
      entries_(DirectoryParser(bytes, source_).parse()),
      is_verified_(entries_.size(), false) {}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries_, name, {}, &ZipEntry::name);
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

std::span<const std::byte> ZipArchive::read(const ZipEntry& entry) const {
  const auto index = static_cast<std::size_t>(&entry - entries_.data());
  if (is_verified_[index] || entry.checksum == 0) return entry.bytes;
  const auto* data = reinterpret_cast<const Bytef*>(entry.bytes.data());
  check_input(crc32_z(0, data, entry.bytes.size()) == entry.checksum, source_, ": ", entry.name,
              " differs from its checksum; the file is damaged");
  is_verified_[index] = true;
  return entry.bytes;
}

bool is_zip_archive(std::span<const std::byte> bytes) {
  u32 signature = 0;
  if (bytes.size() < sizeof(signature)) return false;
  std::memcpy(&signature, bytes.data(), sizeof(signature));
  return signature == zip::kLocalSignature;
}

}  // namespace mcpp

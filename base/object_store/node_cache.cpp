#include "base/object_store/node_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/io/file_system.h"
#include "base/machine.h"
#include "base/object_store/copy_file.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChecksumBytes = 32;
constexpr std::time_t kSecondsInUse = 60;   // an entry that was used this recently is not removed
constexpr std::time_t kSecondsToMark = 30;  // an entry may have been used so long after its mark
constexpr const char* kLocks = "locks";
constexpr const char* kObjects = "objects";  // the cache folder also has files that are never removed

struct Entry {
  Path path;
  i64 bytes;
  std::time_t used;
};

/// Returns all entries; those that other processes remove concurrently may be missing.
std::vector<Entry> entries_in(const Path& folder) {
  std::vector<Entry> entries;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error); !error && it != fs::end(it); it.increment(error)) {
    struct stat info {};
    if (it->path().filename() == kLocks) it.disable_recursion_pending();
    if (::stat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    entries.push_back({it->path(), info.st_size, info.st_mtim.tv_sec});
  }
  return entries;
}

/// Returns true for temporary_name() of a process of this host that is running, which may still write the file.
bool is_being_written(const Path& path) {
  constexpr std::string_view kMark = ".tmp-";
  const std::string name = path.filename().string();
  const std::size_t mark = name.rfind(kMark);
  if (mark == std::string::npos) return false;
  const std::string tag = name.substr(mark + kMark.size());
  return tag.starts_with(process_tag() + ".") || (tag.starts_with(host_name() + "-") && !is_stale_tag(tag));
}

/// Marks an open entry as used, at most every kSecondsToMark, since each mark is a write to the disk.
void mark_used(int descriptor, const struct stat& info) {
  if (std::time(nullptr) - info.st_mtim.tv_sec > kSecondsToMark) ::futimens(descriptor, nullptr);
}

/// Reads exactly these bytes; returns false if the file ends earlier or cannot be read.
bool read_fully(int descriptor, i64 offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t done = ::pread(descriptor, to.data(), to.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    offset += done;
    to = to.subspan(static_cast<std::size_t>(done));
  }
  return true;
}

class OpenEntry {
 public:
  explicit OpenEntry(const Path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenEntry() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenEntry(const OpenEntry&) = delete;
  OpenEntry& operator=(const OpenEntry&) = delete;

  /// Returns true if the file has this size, and marks it as used.
  bool has_size(i64 bytes) const {
    struct stat info {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &info) != 0 || info.st_size != bytes) return false;
    mark_used(descriptor_, info);
    return true;
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

bool is_intact(int descriptor, i64 block_bytes) {
  std::vector<std::byte> content(static_cast<std::size_t>(block_bytes) + kChecksumBytes);
  if (!read_fully(descriptor, 0, content)) return false;
  const std::span<const std::byte> block = std::span(content).first(static_cast<std::size_t>(block_bytes));
  const std::span<const std::byte> stored = std::span(content).last(kChecksumBytes);
  return checksum_hex(block) == std::string_view(reinterpret_cast<const char*>(stored.data()), stored.size());
}

}  // namespace

NodeCacheSettings read_node_cache_settings(const Environment& environment) {
  const auto value = [&](const char* name) {
    const char* text = environment(name);
    return std::string(text ? text : "");
  };
  NodeCacheSettings settings{.folder = value("MEGATRON_CPP_CACHE")};
  if (settings.folder.empty()) {
    const std::string xdg = value("XDG_CACHE_HOME"), home = value("HOME");
    check_input(!xdg.empty() || !home.empty(),
                "paths that begin with s3:// need a folder for copies: set MEGATRON_CPP_CACHE");
    settings.folder = (xdg.empty() ? Path(home) / ".cache" : Path(xdg)) / "megatron_cpp";
  }
  if (const std::string text = value("MEGATRON_CPP_CACHE_BYTES"); !text.empty()) {
    const auto bytes = parse_number<i64>(text);
    check_input(bytes && *bytes > 0, "MEGATRON_CPP_CACHE_BYTES: '", text, "' is not a number of bytes above 0");
    settings.max_bytes = *bytes;
  }
  return settings;
}

NodeCacheSettings read_node_cache_settings() {
  return read_node_cache_settings([](const char* name) { return std::getenv(name); });
}

NodeCache::NodeCache(NodeCacheSettings settings) : settings_(std::move(settings)), unaccounted_(settings_.max_bytes) {
  mcpp::create_directories(settings_.folder / kObjects / kLocks);
}

Path NodeCache::entry(const S3Path& path, const S3Object& object, std::string_view name) const {
  return settings_.folder / kObjects / checksum_hex(str(path.string(), " ", object.etag, " ", object.bytes)) / name;
}

NodeCache::Lock::Lock(const NodeCache& cache, const Path& entry) {
  constexpr std::size_t kLocksInUse = 64;
  const std::string name = str(std::hash<std::string>()(entry.string()) % kLocksInUse);
  const Path path = cache.settings_.folder / kObjects / kLocks / name;
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, "cannot create ", path.string());
  // Without locks, which some file systems lack, processes may download the same entry twice.
  while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

NodeCache::Lock::~Lock() {
  ::close(descriptor_);
}

Path NodeCache::fetch(const S3Path& path, const S3Object& object, S3Transfer& transfer) {
  const Path copy = entry(path, object, path.key.substr(path.key.rfind('/') + 1));
  if (OpenEntry(copy).has_size(object.bytes)) return copy;
  const Lock lock(*this, copy);
  if (OpenEntry(copy).has_size(object.bytes)) return copy;
  make_space(object.bytes);
  mcpp::create_directories(copy.parent_path());
  CopyFile file(copy, object.bytes);
  transfer.download(path, object, 0, object.bytes,
                    [&](i64 offset, std::span<const std::byte> bytes) { file.write(offset, bytes); });
  file.commit();
  return copy;
}

bool NodeCache::read_block(const Path& entry, i64 block_bytes, i64 offset, std::span<std::byte> to,
                           bool verifies) const {
  const OpenEntry file(entry);
  if (!file.has_size(block_bytes + static_cast<i64>(kChecksumBytes))) return false;
  if (verifies && !is_intact(file.get(), block_bytes)) return false;
  return read_fully(file.get(), offset, to);
}

void NodeCache::write_block(const Path& entry, std::span<const std::byte> block) {
  const Path temporary = temporary_name(entry);
  try {
    account(std::ssize(block));
    mcpp::create_directories(entry.parent_path());
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor < 0) return;
    const std::string checksum = checksum_hex(block);
    const bool is_written = ::write(descriptor, block.data(), block.size()) == std::ssize(block) &&
                            ::write(descriptor, checksum.data(), checksum.size()) == std::ssize(checksum);
    ::close(descriptor);
    if (!is_written || ::rename(temporary.c_str(), entry.c_str()) != 0) ::unlink(temporary.c_str());
  } catch (const Error&) {
    return;  // the cache is too small or its disk is full
  }
}

void NodeCache::account(i64 bytes) {
  constexpr i64 kShareUnaccounted = 64;
  unaccounted_ += bytes;
  if (unaccounted_ >= settings_.max_bytes / kShareUnaccounted) make_space(bytes);
}

void NodeCache::make_space(i64 bytes) {
  constexpr i64 kFreeBytes = i64{64} << 20;  // left free for other files of the disk
  check_input(bytes <= settings_.max_bytes, "the cache ", settings_.folder.string(), " of ",
              human_bytes(static_cast<double>(settings_.max_bytes)), " is too small for an object of ",
              human_bytes(static_cast<double>(bytes)), "; set MEGATRON_CPP_CACHE_BYTES higher");
  std::vector<Entry> entries = entries_in(settings_.folder / kObjects);
  std::ranges::sort(entries, {}, &Entry::used);
  i64 used = 0;
  for (const Entry& entry : entries) used += entry.bytes;
  const i64 allowed = settings_.max_bytes - settings_.max_bytes / 8;
  i64 to_remove = used + bytes > settings_.max_bytes ? std::max<i64>(used + bytes - allowed, 1) : 0;
  to_remove = std::max(to_remove, bytes + kFreeBytes - free_bytes(settings_.folder));
  for (const Entry& entry : entries) {
    if (to_remove <= 0 || std::time(nullptr) - entry.used <= kSecondsInUse + kSecondsToMark) break;
    if (is_being_written(entry.path)) continue;
    if (::unlink(entry.path.c_str()) == 0) to_remove -= entry.bytes;
  }
  unaccounted_ = 0;
  const i64 free = free_bytes(settings_.folder);
  check_input(free >= bytes, "the disk of the cache ", settings_.folder.string(), " has ",
              human_bytes(static_cast<double>(free)), " free and an object needs ",
              human_bytes(static_cast<double>(bytes)),
              "; free some, or set MEGATRON_CPP_CACHE to a folder of a different disk");
}

}  // namespace mcpp

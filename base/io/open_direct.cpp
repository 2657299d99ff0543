#include "base/io/open_direct.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>

namespace mcpp {
namespace {

constexpr u32 kXfs = 0x58465342;  // missing from some versions of linux/magic.h
/// Magic numbers of disk file systems. Containers see theirs as an overlay.
constexpr std::array<u32, 5> kOnDisk = {EXT4_SUPER_MAGIC, kXfs, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
                                        OVERLAYFS_SUPER_MAGIC};

}  // namespace

int open_direct(const Path& path, int flags) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return -1;
  if (std::ranges::find(kOnDisk, static_cast<u32>(info.f_type)) == kOnDisk.end()) return -1;
  return ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC);
}

}  // namespace mcpp

// Test folder on a disk. The folder for temporary files may be in memory, to which nothing is offloaded.
#pragma once
#include <linux/magic.h>
#include <sys/vfs.h>

#include "tests/support/build.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {

inline bool is_in_memory(const Path& folder) {
  struct statfs info {};
  return ::statfs(folder.c_str(), &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/// ScratchFolder if that is on a disk, otherwise a folder next to the built programs.
class DiskFolder : public ScratchFolder {
 public:
  DiskFolder() : ScratchFolder(default_parent()) {}

 private:
  static Path default_parent() {
    const Path usual = std::filesystem::temp_directory_path();
    return is_in_memory(usual) ? binary_folder() : usual;
  }
};

}  // namespace mcpp::test

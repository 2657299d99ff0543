#include "base/program/program_files.h"

namespace mcpp {

Path find_installed_file(const Path& file) {
  std::error_code error;
  if (file.is_absolute() || std::filesystem::exists(file, error)) return file;
  const Path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const Path shipped = program.parent_path().parent_path() / "share/megatron_cpp" / file;
  return !error && std::filesystem::exists(shipped, error) ? shipped : file;
}

}  // namespace mcpp

#include "base/broken_symlink.h"

#include "base/check.h"

namespace mcpp {

void check_path_exists(const Path& path) {
  std::error_code why, ignored;
  if (std::filesystem::exists(std::filesystem::status(path, why))) return;
  const bool is_link = std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored));
  const std::string target = is_link ? std::filesystem::read_symlink(path, ignored).string() : "";
  fail(ExitCode::BadInput, "cannot open ", path.string(), is_link ? str(", a link to ", target) : "", ": ",
       why.message());
}

}  // namespace mcpp

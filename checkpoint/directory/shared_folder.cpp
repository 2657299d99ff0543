#include "checkpoint/directory/shared_folder.h"

#include <unistd.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/machine.h"
#include "base/system_error.h"
#include "checkpoint/format/manifest.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

constexpr std::size_t kProbeBytes = 4096;

/// File that is removed by the destructor.
class ProbeFile {
 public:
  ProbeFile(Path path, std::string_view content) : path_(std::move(path)) { write_file_atomic(path_, content); }
  ~ProbeFile() { ::unlink(path_.c_str()); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

 private:
  Path path_;
};

bool appears(const Path& path, const std::string& content, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    std::error_code error;
    if (std::filesystem::exists(path, error) && read_text_file(path) == content) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

void check_outside_checkpoints(const Path& folder, std::string_view key) {
  std::error_code error;
  for (Path above = std::filesystem::weakly_canonical(std::filesystem::absolute(folder), error); !above.empty();
       above = above.parent_path()) {
    check_input(!std::filesystem::is_regular_file(above / kManifestName, error), key, key.empty() ? "" : ": ",
                folder.string(), ": ", above.string(), " is a checkpoint itself; save in a folder outside of it");
    if (above == above.parent_path()) return;
  }
}

void check_holds_no_model(const Path& folder) {
  std::error_code error;
  check_input(
      !std::filesystem::exists(folder / "config.json", error), folder.string(),
      ": holds a Hugging Face model (config.json), whose tokenizer a save would replace; save in another folder");
}

void check_file_outside_checkpoints(const Path& file, std::string_view key) {
  check_outside_checkpoints(std::filesystem::absolute(file).parent_path(), key);
}

void check_writable(const Path& folder) {
  const Path path = folder / str(".probe-", process_tag());
  constexpr std::array<std::byte, kProbeBytes> kPage{};
  {
    AtomicFile file(path);
    file.write(kPage);
    file.commit();
  }
  MCPP_CHECK_SYSTEM(::unlink(path.c_str()) == 0, "cannot remove ", path.string());
}

void check_can_be_written(const Path& folder) {
  Path existing = std::filesystem::absolute(folder);
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  check_input(std::filesystem::is_directory(existing, error), "cannot create the directory ", folder.string(),
              ": Not a directory");
  check_writable(existing);
}

void check_shared_folder(const Path& folder, Communicator& world, std::chrono::milliseconds patience) {
  if (world.size() == 1) return;
  std::optional<ProbeFile> probe;
  const std::string owner = broadcast_from_rank0(world, process_tag);
  // The name is unique, so no file server can answer from its cache.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string token = broadcast_from_rank0(world, [&] { return str(owner, ".", now); });
  const Path path = folder / str(".probe-", token, ".shared");
  broadcast_from_rank0(world, [&] {
    probe.emplace(path, token);
    return std::string();
  });
  run_on_all_ranks(world, [&] {
    if (world.rank() == 0) return std::string();
    check_input(appears(path, token, patience), "host ", host_name(), " does not see in ", folder.string(),
                " what rank 0 wrote there (", owner, "): all ranks must share checkpoint.save");
    ProbeFile(folder / str(".probe-", token, ".", world.rank()), std::string(kProbeBytes, '\0'));
    return std::string();
  });
}

}  // namespace mcpp

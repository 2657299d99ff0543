#include "checkpoint/directory/folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/machine.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "base/system_error.h"
#include "checkpoint/format/block_io.h"
#include "checkpoint/format/hdf5.h"
#include "checkpoint/format/manifest.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "iter_";

/// Returns the tensors of a damaged file with wrong values, as " (damaged: a, b)"; empty if HDF5 cannot locate them.
std::string damaged_tensors(const Manifest& manifest, i64 file, const MappedFile& content) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> damaged;
  try {
    const Hdf5File layout(content.path());
    for (const TensorEntry& tensor : manifest.tensors) {
      for (const ShardEntry& shard : tensor.shards) {
        if (shard.file != file || damaged.size() > kNamed) continue;
        const auto offset = static_cast<u64>(layout.offset_of(shard.dataset, tensor.dtype, shard.numel()));
        const auto size = static_cast<u64>(shard.numel() * size_of(tensor.dtype));
        if (checksum_hex(content.bytes().subspan(offset, size)) != shard.checksum) damaged.push_back(tensor.name);
      }
    }
  } catch (const Error&) {
    return {};  // the layout itself is damaged; the caller reports the file
  }
  if (damaged.size() > kNamed) damaged.back() = "...";
  return damaged.empty() ? std::string() : " (damaged: " + join(damaged, ", ") + ")";
}

/// Returns why the datasets of a file differ from those of the manifest; empty if they agree.
std::string layout_problem(const Path& path, const Manifest& manifest, i64 file) {
  try {
    const Hdf5File layout(path);
    for (const TensorEntry& tensor : manifest.tensors) {
      for (const ShardEntry& shard : tensor.shards) {
        if (shard.file == file) layout.offset_of(shard.dataset, tensor.dtype, shard.numel());
      }
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Returns why there is no regular file of this name.
std::string missing_file(const Path& path) {
  if (is_s3_path(path)) return path.string() + ": does not exist in the object store";
  std::error_code error;
  const bool exists = fs::exists(fs::status(path, error));
  return str(path.string(), ": ", exists ? "is not a regular file" : error.message());
}

/// Returns the problem of file `index` of the manifest, or an empty string.
std::string find_file_problem(const Path& directory, const Manifest& manifest, i64 index, bool should_verify_checksums,
                              const BytesListener& read) {
  const FileEntry& file = manifest.files[static_cast<std::size_t>(index)];
  const Path path = directory / file.name;
  const std::optional<i64> size = stored_file_bytes(path);
  if (!size) return missing_file(path);
  if (*size != file.bytes) return str(path.string(), " has ", *size, " bytes instead of ", file.bytes);
  if (!should_verify_checksums) return {};
  const Path copy = local_copy(path);
  if (file_checksum(InputFile(copy), read) == file.checksum) return layout_problem(copy, manifest, index);
  const std::string problem =
      str(path.string(), " differs from its checksum", damaged_tensors(manifest, index, MappedFile(copy)));
  remove_local_copy(path, copy);
  return problem;
}

std::vector<std::string> extra_files(const Path& directory, const Manifest& manifest) {
  std::set<std::string> expected{std::string(kManifestName), std::string(kManifestChecksumName)};
  for (const FileEntry& file : manifest.files) expected.insert(file.name);
  std::vector<std::string> unexpected;
  if (is_s3_path(directory)) return unexpected;  // interrupted uploads may leave objects, which the next save removes
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (!expected.contains(entry.path().filename().string())) {
      unexpected.push_back(str(entry.path().string(), " does not belong to the checkpoint"));
    }
  }
  std::ranges::sort(unexpected);
  return unexpected;
}

/// Reports a checkpoint named after a different iteration: retention, order and resuming rely on the names.
std::vector<std::string> wrong_name(const Path& directory, const Manifest& manifest) {
  const std::optional<i64> named = iteration_of(directory.filename().string());
  if (!named || *named == manifest.state.iteration) return {};
  return {str(directory.string(), " is the checkpoint of iteration ", manifest.state.iteration,
              ", according to its manifest, and was renamed; rename it to ", checkpoint_name(manifest.state.iteration),
              " again")};
}

/// Implements find_problems() for one of `parts` readers: reader i % parts reads file i, reader 0 checks the rest.
std::vector<std::string> find_problems_in_part(const Path& directory, bool should_verify_checksums, i64 part, i64 parts,
                                               const BytesListener& read = {}) {
  std::vector<std::string> problems;
  try {
    const Manifest manifest = read_manifest(directory);
    if (part == 0) problems = extra_files(directory, manifest);
    for (i64 i = part; i < static_cast<i64>(manifest.files.size()); i += parts) {
      std::string problem = find_file_problem(directory, manifest, i, should_verify_checksums, read);
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
    if (part == 0 && problems.empty()) problems = wrong_name(directory, manifest);  // not the manifest of other files
  } catch (const Error& error) {
    if (error.code() == ExitCode::PeerLost) throw;  // an unreachable object store is not damage
    problems.emplace_back(error.what());
  } catch (const fs::filesystem_error& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

/// Returns the first line of a small text file; "" if no regular file has that name.
std::string first_line(const Path& path) {
  if (!stored_file_exists(path)) return {};
  const std::string text = read_stored_text(path);
  return text.substr(0, text.find_last_not_of("\r\n ") + 1);
}

/// Returns the content of `latest`, for comparison with a record of begin_publication().
std::string named_by_latest(const Path& folder) {
  const std::string name = first_line(folder / kLatestName);
  return name.empty() ? "-" : name;
}

/// Returns the record that begin_publication() writes.
std::string publication_record(const std::string& name, const std::string& checksum, const std::string& before) {
  return str(name, " ", checksum, " after ", before);
}

/// Returns the checksum of the manifest of a checkpoint; "" if there is none. While an object store replaces a
/// manifest, the object with the checksum lists two.
std::string manifest_checksum(const Path& directory) {
  if (!is_s3_path(directory)) return first_line(directory / kManifestChecksumName);
  const Path path = directory / kManifestName;
  return stored_file_exists(path) ? checksum_hex(read_stored_text(path)) : std::string();
}

/// Returns the complete checkpoint whose process died before `latest` named it.
std::optional<Path> interrupted_publication(const Path& folder) {
  const std::string record = first_line(folder / kNextName);
  const std::string name = record.substr(0, record.find(' '));
  if (!iteration_of(name)) return std::nullopt;
  const std::string checksum = manifest_checksum(folder / name);
  if (record != publication_record(name, checksum, named_by_latest(folder))) return std::nullopt;
  return folder / name;
}

/// Replaces a file of a checkpoint folder. A symbolic link of that name is replaced, not followed.
void replace_file(const Path& path, const std::string& line) {
  std::error_code error;
  if (fs::is_symlink(path, error)) fs::remove(path, error);
  write_stored_text(path, line + "\n");
}

/// Removes the record of begin_publication(). Errors are ignored: a record that remains has no effect.
void remove_record(const Path& folder) {
  try {
    remove_stored_file(folder / kNextName);
  } catch (const Error&) {
    return;
  }
}

}  // namespace

std::string checkpoint_name(i64 iteration) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%s%07lld", kPrefix.data(), static_cast<long long>(iteration));
  return text.data();
}

std::optional<i64> iteration_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto iteration = parse_number<i64>(std::string_view(name).substr(kPrefix.size()));
  return iteration && checkpoint_name(*iteration) == name ? iteration : std::nullopt;
}

namespace {

/// Returns the checkpoints of an s3:// folder. Objects without a manifest belong to an upload in progress or to one
/// that was interrupted.
std::vector<Path> checkpoint_objects_in(const Path& folder) {
  std::vector<Path> checkpoints;
  for (const std::string& name : object_folders(folder))
    if (iteration_of(name) && stored_file_exists(folder / name / kManifestName)) checkpoints.push_back(folder / name);
  return checkpoints;
}

}  // namespace

std::vector<Path> checkpoints_in(const Path& folder) {
  if (is_s3_path(folder)) return checkpoint_objects_in(folder);
  std::vector<Path> checkpoints;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (iteration_of(entry.path().filename().string()) && entry.is_directory(error))
      checkpoints.push_back(entry.path());
  }
  check_input(!error || error == std::errc::no_such_file_or_directory, "cannot list ", folder.string(), ": ",
              error.message());
  std::ranges::sort(checkpoints, {}, [](const Path& path) { return *iteration_of(path.filename().string()); });
  return checkpoints;
}

std::optional<Path> latest_in(const Path& folder) {
  const std::string name = first_line(folder / kLatestName);
  std::error_code error;
  if (!iteration_of(name)) return std::nullopt;
  const bool exists =
      is_s3_path(folder) ? stored_file_exists(folder / name / kManifestName) : fs::is_directory(folder / name, error);
  return exists ? std::optional(folder / name) : std::nullopt;
}

void advance_latest(const Path& checkpoint) {
  const std::optional<Path> latest = latest_in(checkpoint.parent_path());
  const i64 iteration = *iteration_of(checkpoint.filename().string());
  if (!latest || *iteration_of(latest->filename().string()) < iteration) end_publication(checkpoint);
}

void begin_publication(const Path& checkpoint, const Path& staging) {
  const Path folder = checkpoint.parent_path();
  const std::string checksum = first_line(staging / kManifestChecksumName);
  replace_file(folder / kNextName,
               publication_record(checkpoint.filename().string(), checksum, named_by_latest(folder)));
}

void end_publication(const Path& checkpoint) {
  const Path folder = checkpoint.parent_path();
  replace_file(folder / kLatestName, checkpoint.filename().string());
  remove_record(folder);
}

void remove_stale_publication(const Path& folder) {
  const std::optional<Path> next = interrupted_publication(folder);
  if (!next || next == latest_in(folder)) remove_record(folder);
}

bool has_latest(const Path& folder) {
  std::error_code error;
  const Path path = folder / kLatestName;
  return is_s3_path(folder) ? stored_file_exists(path) : fs::exists(fs::symlink_status(path, error));
}

std::vector<Path> checkpoints_in_order(const Path& folder) {
  std::vector<Path> all = checkpoints_in(folder);
  std::ranges::reverse(all);
  if (has_latest(folder)) {
    const std::optional<Path> latest = latest_in(folder);
    check_input(latest.has_value(), (folder / kLatestName).string(), ": names no checkpoint of this folder (\"",
                first_line(folder / kLatestName),
                "\"): write the name of one into it, restore that checkpoint, or remove the file to ",
                all.empty() ? "treat the folder as empty" : "use the newest, " + all.front().filename().string());
    std::rotate(all.begin(), std::ranges::find(all, *latest), all.end());
  }
  if (const std::optional<Path> next = interrupted_publication(folder)) {
    const auto it = std::ranges::find(all, *next);
    if (it != all.end()) std::rotate(all.begin(), it, it + 1);
  }
  return all;
}

std::vector<std::string> find_problems(const Path& directory, bool should_verify_checksums, const BytesListener& read) {
  return find_problems_in_part(directory, should_verify_checksums, 0, 1, read);
}

std::vector<Path> load_candidates(const Path& folder, Communicator& world) {
  const auto list_names = [&] {
    std::vector<std::string> names;
    for (const Path& path : checkpoints_in_order(folder)) names.push_back(path.string());
    return join(names, "\n");
  };
  const std::string list = broadcast_from_rank0(world, list_names);
  std::vector<Path> result;
  if (!list.empty()) {
    for (const std::string& directory : split(list, '\n')) result.emplace_back(directory);
  }
  return result;
}

std::optional<Damage> find_damage(const Path& directory, Communicator& world, bool should_verify_checksums) {
  return first_damage(run_on_all_ranks(world, [&] {
    return join(find_problems_in_part(directory, should_verify_checksums, world.rank(), world.size()), "\n");
  }));
}

std::string damage_warning(const Path& directory, const std::string& problem) {
  return str("the checkpoint ", directory.string(), " is damaged and not used:\n", problem);
}

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

bool appears(const Path& path, const std::string& content, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    std::error_code error;
    if (std::filesystem::exists(path, error) && read_text_file(path) == content) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void check_object_outside_checkpoints(const Path& folder) {
  for (Path above = S3Path::parse(folder).string(); above.has_parent_path() && above.parent_path() != "s3:";
       above = above.parent_path()) {
    check_input(!stored_file_exists(above / kManifestName), folder.string(), ": ", above.string(),
                " is a checkpoint itself; choose a folder outside of it");
  }
}

}  // namespace

void check_outside_checkpoints(const Path& folder, std::string_view key) {
  check_input(!is_s3_path(folder), key, key.empty() ? "" : ": ", folder.string(),
              ": is an object, but this output is a local file; choose a local folder, and upload the result");
  std::error_code error;
  for (Path above = std::filesystem::weakly_canonical(std::filesystem::absolute(folder), error); !above.empty();
       above = above.parent_path()) {
    check_input(!std::filesystem::is_regular_file(above / kManifestName, error), key, key.empty() ? "" : ": ",
                folder.string(), ": ", above.string(), " is a checkpoint itself; choose a folder outside of it");
    if (above == above.parent_path()) return;
  }
}

void check_save_folder(const Path& folder) {
  if (is_s3_path(folder))
    check_object_outside_checkpoints(folder);
  else
    check_outside_checkpoints(folder);
  check_input(
      !stored_file_exists(folder / "config.json"), folder.string(),
      ": holds a Hugging Face model (config.json), whose tokenizer a save would replace; choose a different folder");
}

void check_file_outside_checkpoints(const Path& file, std::string_view key) {
  check_outside_checkpoints(is_s3_path(file) ? file : std::filesystem::absolute(file).parent_path(), key);
}

void check_writable(const Path& folder) {
  const Path path = folder / str(".probe-", process_tag());
  if (is_s3_path(folder)) {
    write_stored_text(path, "");
    return remove_stored_file(path);
  }
  constexpr std::array<std::byte, kProbeBytes> kPage{};
  {
    AtomicFile file(path);
    file.write(kPage);
    file.commit();
  }
  MCPP_CHECK_SYSTEM(::unlink(path.c_str()) == 0, "cannot remove ", path.string());
}

void check_writable_or_creatable(const Path& folder) {
  if (is_s3_path(folder)) return check_writable(folder);
  const Path existing = nearest_existing(folder);
  std::error_code error;
  check_input(std::filesystem::is_directory(existing, error), "cannot create the directory ", folder.string(),
              ": Not a directory");
  check_writable(existing);
}

void check_shared_folder(const Path& folder, Communicator& world, std::chrono::milliseconds timeout) {
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
    check_input(appears(path, token, timeout), "host ", host_name(), " does not see in ", folder.string(),
                " the file that rank 0 (", owner, ") wrote there: all ranks must share checkpoint.save");
    ProbeFile(folder / str(".probe-", token, ".", world.rank()), std::string(kProbeBytes, '\0'));
    return std::string();
  });
}

}  // namespace mcpp

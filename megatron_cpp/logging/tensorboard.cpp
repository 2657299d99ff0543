#include "megatron_cpp/logging/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/machine.h"
#include "base/strings.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

// File name: "events.out.tfevents.<seconds>.<host>-<process>.megatron_cpp". TensorBoard reads files with "tfevents" in
// their name, sorted by name.
constexpr std::string_view kBegin = "events.out.tfevents.", kEnd = ".megatron_cpp", kOldPrefix = "old_events.";
constexpr std::size_t kDigits = 10;

bool is_event_file(const std::string& name) {
  return name.starts_with(kBegin) && name.ends_with(kEnd) && name.size() > kBegin.size() + kDigits + kEnd.size();
}

std::vector<Path> files_in(const Path& folder) {
  std::vector<Path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && is_event_file(entry.path().filename().string())) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

i64 seconds_of(const Path& file) {
  const std::string name = file.filename().string();
  i64 seconds = 0;
  std::from_chars(name.data() + kBegin.size(), name.data() + kBegin.size() + kDigits, seconds);
  return seconds;
}

/// Returns a name that sorts after all `files`, even if the clock went back or two starts happen within one second.
Path next_file(const Path& folder, const std::vector<Path>& files) {
  auto seconds = static_cast<i64>(wall_seconds());
  if (!files.empty()) seconds = std::max(seconds, seconds_of(files.back()) + 1);
  const std::string digits = std::to_string(seconds);
  return folder /
         str(kBegin, std::string(kDigits - std::min(kDigits, digits.size()), '0'), digits, ".", process_tag(), kEnd);
}

void rename_old_files(const Path& file) {
  const std::string name = file.filename().string();
  Path target = file;
  target.replace_filename(str(kOldPrefix, name.substr(kBegin.size())));
  std::error_code error;
  std::filesystem::rename(file, target, error);
  check_input(!error, file.string(), ": cannot be renamed to keep another run's events: ", error.message());
}

bool is_kept(std::string_view record, const std::string& source, const TensorboardWriter::KeepEventFn& should_keep) {
  const EventKey key = parse_event_key(record, source);
  return key.tag.empty() || should_keep(key.step, key.tag);
}

void drop_events(const Path& path, const TensorboardWriter::KeepEventFn& should_keep) {
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  std::string_view rest = all, record;
  std::string kept;
  while (next_record(rest, record))
    if (is_kept(record, path.string(), should_keep)) kept += framed_record(record);
  if (kept.size() != all.size()) write_file_atomic(path, kept);
}

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TensorboardWriter::TensorboardWriter(Path folder, StoredRef<Log> log) : folder_(std::move(folder)), log_(log) {
  if (folder_.empty()) return;
  constexpr const char* kKey = "logging.tensorboard_dir: ";
  std::error_code error;
  check_input(!std::filesystem::exists(folder_, error) || std::filesystem::is_directory(folder_, error), kKey,
              folder_.string(), " is a file; name a folder");
  mcpp::create_directories(folder_);
  MCPP_CHECK_SYSTEM(::access(folder_.c_str(), W_OK | X_OK) == 0, kKey, "nothing can be written in ", folder_.string());
}

void TensorboardWriter::begin(const KeepEventFn& should_keep) {
  if (folder_.empty()) return;
  const std::vector<Path> files = files_in(folder_);
  for (const Path& file : files) {
    try {
      should_keep ? drop_events(file, should_keep) : rename_old_files(file);
    } catch (const Error& error) {
      log_.warn(str(error.what(), "; TensorBoard may show steps of an earlier start twice"));
    }
  }
  file_ = AppendFile(next_file(folder_, files), "events for TensorBoard", log_);
  file_.append(framed_record(EventRecord::file_header(wall_seconds())));
}

}  // namespace mcpp

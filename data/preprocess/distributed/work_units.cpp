#include "data/preprocess/distributed/work_units.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "data/preprocess/indexed_writer.h"

namespace mcpp {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Returns the start of the first line at or after `from`.
i64 next_line_start(std::string_view text, i64 from) {
  const std::size_t newline = text.find('\n', static_cast<std::size_t>(std::max<i64>(from - 1, 0)));
  return newline == std::string_view::npos ? static_cast<i64>(text.size()) : static_cast<i64>(newline) + 1;
}

/// Visits the split points of TextSource in order, and keeps the split points at line starts that are far enough apart.
/// A split point depends only on the text before it, so a reader that starts at a kept split point finds the same later
/// split points.
std::vector<TextRange> split_into_ranges(std::string_view text, SplitMode mode, i64 unit_bytes) {
  const auto size = static_cast<i64>(text.size());
  std::vector<TextRange> ranges;
  TextRange range;
  bool begins_line = true;
  for (i64 position = 0; position < size;) {
    bool ends_document = true;
    if (mode == SplitMode::Line) {
      position = next_line_start(text, position + unit_bytes);
    } else if (size - position <= static_cast<i64>(kTokenizedChunkBytes)) {
      position = size;
    } else {
      const ChunkEnd end =
          find_chunk_end(text.substr(static_cast<std::size_t>(position), kTokenizedChunkBytes), mode, begins_line);
      position += static_cast<i64>(end.size);
      ends_document = end.ends_document;
    }
    begins_line = text[static_cast<std::size_t>(position - 1)] == '\n';
    if (position < size && (!begins_line || position - range.begin < unit_bytes)) continue;
    range.end = position;
    range.ends_document = ends_document;
    ranges.push_back(range);
    range = {.begin = position, .begins_document = ends_document};
  }
  return ranges;
}

/// Makes the identity of each unit include the identities of all earlier units.
void chain_identities(std::vector<WorkUnit>& units) {
  for (std::size_t i = 1; i < units.size(); ++i) {
    const std::string last = units[i - 1].identity();
    units[i].before = checksum_hex(last);
  }
}

/// Returns the size and modification time of a file, or the size and ETag of an object; "" if it does not exist.
std::string get_file_stamp(const Path& path) {
  if (is_s3_path(path)) return object_stamp(path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return str(info.st_size, " bytes, changed at ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

}  // namespace

std::string WorkUnit::identity() const {
  return str(path.string(), ", ", file_stamp, ", bytes ", range.begin, " to ", range.end,
             is_json_lines ? " of JSON lines" : "", ", after ", before);
}

i64 choose_unit_bytes(u64 total_bytes) {
  constexpr u64 kUnits = 1024, kMinBytes = u64{8} << 20, kMaxBytes = u64{256} << 20;
  return static_cast<i64>(std::clamp(total_bytes / kUnits, kMinBytes, kMaxBytes));
}

std::vector<WorkUnit> make_work_units(const std::vector<std::string>& files, const DocumentFormat& format,
                                      i64 unit_bytes) {
  std::vector<WorkUnit> units;
  for (const Path path : files) {
    if (!is_s3_path(path)) check_path_exists(path);
    const InputStream stream(path);
    check_input(stream.is_regular_file(), path.string(),
                ": is a pipe, which ranks cannot share and a restart cannot resume; use one process, or a file");
    const std::string file_stamp = get_file_stamp(path);
    check_input(!file_stamp.empty(), "cannot read the attributes of ", path.string());
    const i64 size = stored_file_bytes(path).value();
    const bool is_json = is_json_lines(path, format.input_format);
    const auto add = [&](const TextRange& range, i64 bytes) {
      units.push_back({.path = path,
                       .range = range,
                       .file_stamp = file_stamp,
                       .before = {},
                       .is_json_lines = is_json,
                       .bytes = bytes});
    };
    if (stream.compression_name() || size <= unit_bytes) {
      add(stream.compression_name() ? TextRange() : TextRange{.end = size}, size);
      continue;
    }
    const MappedFile file(local_copy(path));
    for (const TextRange& range : split_into_ranges(text_of(file), split_mode_for(is_json, format), unit_bytes))
      add(range, range.end - range.begin);
  }
  chain_identities(units);
  return units;
}

void check_file_unchanged(const WorkUnit& unit) {
  const std::string now = get_file_stamp(unit.path);
  check_input(!now.empty(), unit.path.string(),
              ": does not exist on this rank; all ranks must see the same files, as on a shared file system");
  check_input(now == unit.file_stamp, unit.path.string(), ": has changed since the work was distributed: ", now,
              " instead of ", unit.file_stamp,
              "; all ranks must see the same files, which must not change during the run");
}

TextRange add_line_number(const Path& path, TextRange range) {
  const MappedFile file(local_copy(path));
  const std::string_view before = text_of(file).substr(0, static_cast<std::size_t>(range.begin));
  range.first_line = 1 + std::count(before.begin(), before.end(), '\n');
  return range;
}

}  // namespace mcpp

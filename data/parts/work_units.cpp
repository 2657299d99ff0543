#include "data/parts/work_units.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/links.h"
#include "data/prepare/document_output.h"

namespace mcpp {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Returns the start of the first line at or after `from`.
i64 after_line(std::string_view text, i64 from) {
  const std::size_t newline = text.find('\n', static_cast<std::size_t>(std::max<i64>(from - 1, 0)));
  return newline == std::string_view::npos ? static_cast<i64>(text.size()) : static_cast<i64>(newline) + 1;
}

/// Walks from cut to cut as TextSource does and keeps the cuts at line starts that are far enough apart. A cut depends
/// only on the text before it, so a reader that starts at a kept cut makes the same cuts from there on.
std::vector<TextRange> ranges_of(std::string_view text, Cut cut, i64 unit_bytes) {
  const auto size = static_cast<i64>(text.size());
  std::vector<TextRange> ranges;
  TextRange range;
  bool begins_line = true;
  for (i64 position = 0; position < size;) {
    bool ends_document = true;
    if (cut == Cut::Line) {
      position = after_line(text, position + unit_bytes);
    } else if (size - position <= static_cast<i64>(kTokenisedPieceBytes)) {
      position = size;
    } else {
      const PieceEnd end =
          end_of_piece(text.substr(static_cast<std::size_t>(position), kTokenisedPieceBytes), cut, begins_line);
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

/// Includes the identity of all earlier units in each unit's.
void chain(std::vector<WorkUnit>& units) {
  for (std::size_t i = 1; i < units.size(); ++i) {
    const std::string last = units[i - 1].identity();
    units[i].before = checksum_hex(last);
  }
}

/// Returns the size and modification time of a file, or "" if it does not exist.
std::string state_of_file(const Path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return str(info.st_size, " bytes, changed at ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

}  // namespace

std::string WorkUnit::identity() const {
  return str(path.string(), ", ", of_file, ", bytes ", range.begin, " to ", range.end,
             is_json_lines ? " of JSON lines" : "", ", after ", before);
}

i64 unit_bytes_for(u64 total_bytes) {
  constexpr u64 kUnits = 1024, kLeast = u64{8} << 20, kMost = u64{256} << 20;
  return static_cast<i64>(std::clamp(total_bytes / kUnits, kLeast, kMost));
}

std::vector<WorkUnit> work_units(const std::vector<std::string>& files, const DocumentFormat& format, i64 unit_bytes) {
  std::vector<WorkUnit> units;
  for (const Path path : files) {
    check_leads_somewhere(path);
    const InputStream stream(path);
    check_input(stream.is_regular_file(), path.string(),
                ": is a pipe, which cannot be shared by ranks, nor gone on with; use one process, or a file");
    const std::string of_file = state_of_file(path);
    check_input(!of_file.empty(), "cannot read the attributes of ", path.string());
    const auto size = static_cast<i64>(std::filesystem::file_size(path));
    const bool is_json = is_json_lines(path, format.input_format);
    const auto add = [&](const TextRange& range, i64 bytes) {
      units.push_back(
          {.path = path, .range = range, .of_file = of_file, .before = {}, .is_json_lines = is_json, .bytes = bytes});
    };
    if (stream.packing() || size <= unit_bytes) {
      add(stream.packing() ? TextRange() : TextRange{.end = size}, size);
      continue;
    }
    const MappedFile file(path);
    for (const TextRange& range : ranges_of(text_of(file), cut_for(is_json, format), unit_bytes))
      add(range, range.end - range.begin);
  }
  chain(units);
  return units;
}

void check_file_of(const WorkUnit& unit) {
  const std::string now = state_of_file(unit.path);
  check_input(!now.empty(), unit.path.string(),
              ": is not there for this rank; all ranks must see the same files, as on a shared file system");
  check_input(now == unit.of_file, unit.path.string(), ": is another file than when the work was shared out, ", now,
              " instead of ", unit.of_file,
              "; all ranks must see the same files, and nothing may change them meanwhile");
}

TextRange with_line_number(const Path& path, TextRange range) {
  const MappedFile file(path);
  const std::string_view before = text_of(file).substr(0, static_cast<std::size_t>(range.begin));
  range.first_line = 1 + std::count(before.begin(), before.end(), '\n');
  return range;
}

}  // namespace mcpp

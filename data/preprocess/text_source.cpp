#include "data/preprocess/text_source.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/object_store/stored_file.h"
#include "base/utf8.h"

namespace mcpp {
namespace {

constexpr std::size_t kMaxLine = std::size_t{1} << 30;
// Text compresses by a factor of 3 to 20; a larger factor indicates a decompression bomb or degenerate data.
constexpr i64 kMaxExpansion = 200, kMinCheckedBytes = i64{16} << 20;
constexpr std::size_t npos = std::string::npos;
constexpr std::size_t kTextBeforeBytes = 16;

/// Returns the complete characters within the last kTextBeforeBytes bytes of `text`.
std::string last_characters(std::string_view text) {
  text.remove_prefix(text.size() - std::min(text.size(), kTextBeforeBytes));
  while (!text.empty() && (static_cast<u8>(text[0]) & 0xC0) == 0x80) text.remove_prefix(1);
  return std::string(text);
}

/// Implements SplitMode::Anywhere. Returns 0 only for empty text.
std::size_t find_split_position(std::string_view text) {
  const std::size_t newline = text.rfind('\n');
  if (newline != npos) return newline + 1;
  const std::size_t space = text.rfind(' ');  // belongs to the following word, as in the tokenizer's chunks
  if (space != npos && space > 0) return space;
  const std::size_t boundary = utf8_boundary(text, text.size() - 1);
  return boundary > 0 ? boundary : text.size();
}

/// Returns true if a paragraph ends here: the last line of `text` is complete and blank and, unless `begins_line`, is
/// not the first line.
bool ends_in_blank_line(std::string_view text, bool begins_line) {
  if (!text.ends_with('\n')) return false;
  text.remove_suffix(1);
  const std::size_t newline = text.rfind('\n');
  return newline == npos ? begins_line && is_blank(text) : is_blank(text.substr(newline + 1));
}

}  // namespace

std::size_t find_paragraph_start(std::string_view text) {
  for (std::size_t newline = text.rfind('\n'); newline != npos && newline > 0;
       newline = text.rfind('\n', newline - 1)) {
    const std::size_t begin = text.rfind('\n', newline - 1) + 1;  // npos + 1 is 0
    const std::size_t next = text.find_first_not_of(" \t\r", newline + 1);
    const bool next_is_text = next != npos && text[next] != '\n';
    if (next_is_text && is_blank(text.substr(begin, newline - begin))) return newline + 1;
  }
  return npos;
}

ChunkEnd find_chunk_end(std::string_view text, SplitMode mode, bool begins_line) {
  MCPP_CHECK(mode != SplitMode::Line, "find_chunk_end() does not support SplitMode::Line");
  const std::size_t blank = mode == SplitMode::Paragraph ? find_paragraph_start(text) : npos;
  if (blank != npos) return {blank, true};
  const std::size_t size = find_split_position(text);
  return {size, mode == SplitMode::Paragraph && ends_in_blank_line(text.substr(0, size), begins_line)};
}

TextSource::TextSource(const Path& path, const TextRange& range)
    : path_(path),
      file_(path),
      range_(range),
      byte_offset_(range.begin),
      line_(range.first_line),
      begins_document_(range.begins_document),
      begins_line_(range.begins_line) {
  if (file_.is_regular_file()) size_on_disk_ = stored_file_bytes(path).value_or(0);
  if (range.begin > 0) read_text_before();
}

/// Seeks to the beginning of the range and reads the text before it.
void TextSource::read_text_before() {
  const auto size = std::min<std::size_t>(kTextBeforeBytes, static_cast<std::size_t>(range_.begin));
  file_.seek(static_cast<u64>(range_.begin) - size);
  std::string before(size, '\0');
  for (std::size_t have = 0; have < size;) {
    const std::size_t got = file_.read(std::span(before).subspan(have));
    check_input(got > 0, path_.string(), ": shrank while it was being read");
    have += got;
  }
  if (!range_.begins_document) text_before_ = last_characters(before);
}

/// Reads until the buffer holds `bytes` or the file ends.
void TextSource::fill(std::size_t bytes) {
  while (!is_at_end_ && buffer_.size() < bytes) {
    const std::size_t have = buffer_.size();
    const i64 left = range_.end - byte_offset_ - static_cast<i64>(have);
    buffer_.resize(std::max(bytes, have + 1));
    const std::span<char> free_space = std::span(buffer_).subspan(have);
    const std::size_t got =
        left > 0 ? file_.read(free_space.first(static_cast<std::size_t>(std::min<i64>(left, std::ssize(free_space)))))
                 : 0;
    buffer_.resize(have + got);
    is_at_end_ = got == 0;
    const i64 size = byte_offset_ + static_cast<i64>(buffer_.size());
    check_input(size <= kMinCheckedBytes || !size_on_disk_ || !file_.compression_name() ||
                    size / kMaxExpansion <= *size_on_disk_,
                path_.string(), ": is more than ", kMaxExpansion, " times as large as its ", file_.compression_name(),
                " file, which suggests a decompression bomb; if the text is valid, decompress it first");
  }
}

bool TextSource::next(TextChunk& chunk, std::size_t target_bytes, SplitMode mode) {
  fill(target_bytes + 1);  // one extra byte shows whether the chunk ends the file
  if (buffer_.empty()) return false;
  std::size_t size = buffer_.size();
  chunk.ends_document = is_at_end_ && range_.ends_document;
  if (!is_at_end_ && mode == SplitMode::Line) {
    std::size_t newline = buffer_.rfind('\n');
    while (newline == npos && !is_at_end_) {
      check_input(buffer_.size() < kMaxLine, path_.string(), ": line ", line_, " is longer than 1 GiB");
      fill(2 * buffer_.size());
      newline = buffer_.rfind('\n');
    }
    size = newline == npos ? buffer_.size() : newline + 1;
    chunk.ends_document = true;
  } else if (!is_at_end_) {
    const ChunkEnd end = find_chunk_end(std::string_view(buffer_).substr(0, size - 1), mode, begins_line_);
    size = end.size;
    chunk.ends_document = end.ends_document;
  }
  chunk.text.assign(buffer_, 0, size);
  chunk.begins_document = std::exchange(begins_document_, chunk.ends_document);
  chunk.begins_line = std::exchange(begins_line_, chunk.text.ends_with('\n'));
  chunk.text_before = std::exchange(text_before_, chunk.ends_document ? "" : last_characters(chunk.text));
  buffer_.erase(0, size);
  chunk.byte_offset = byte_offset_;
  chunk.first_line = line_;
  byte_offset_ += static_cast<i64>(size);
  line_ += std::count(chunk.text.begin(), chunk.text.end(), '\n');
  return true;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == npos;
}

i64 count_words(std::string_view text) {
  i64 words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    words += !is_space && !inside;
    inside = !is_space;
  }
  return words;
}

}  // namespace mcpp

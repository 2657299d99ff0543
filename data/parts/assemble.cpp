#include "data/parts/assemble.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

/// A file that several processes write to, each its own bytes.
class SharedFile {
 public:
  explicit SharedFile(const Path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
    MCPP_CHECK_SYSTEM(descriptor_ >= 0, path.string(), ": cannot be written");
  }
  ~SharedFile() { ::close(descriptor_); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  void set_size(i64 bytes) { MCPP_CHECK_SYSTEM(::ftruncate(descriptor_, bytes) == 0, path_.string(), ": cannot grow"); }
  void write_at(i64 offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      MCPP_CHECK_SYSTEM(written > 0, path_.string(), ": cannot be written");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += written;
    }
  }
  void sync() { MCPP_CHECK_SYSTEM(::fsync(descriptor_) == 0, path_.string(), ": cannot be written"); }

 private:
  Path path_;
  int descriptor_;
};

std::vector<std::byte> token_as_bytes(i64 token, TokenType type) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(token_bytes(type)));
  std::memcpy(bytes.data(), &token, bytes.size());  // little endian, as the files are
  return bytes;
}

}  // namespace

PartsAssembly::PartsAssembly(const PartsFolder& folder, const std::vector<WorkUnit>& units,
                             const std::vector<PartNote>& notes, std::size_t key, const PreprocessOptions& options)
    : folder_(folder), options_(options), key_(folder.keys()[key]) {
  MCPP_CHECK(units.size() == notes.size() && !units.empty(), units.size(), " units, ", notes.size(), " notes");
  info_ = notes[0].keys[key].info;
  info_.documents = info_.tokens = info_.source_bytes = info_.source_words = 0;
  type_ = token_type_for_vocab(info_.vocab_size);
  for (std::size_t part = 0; part < units.size(); ++part) {
    parts_.push_back(folder.prefix(units[part], key_));
    notes_.push_back(notes[part].keys[key]);
    add_part(part, notes_.back());
  }
  MCPP_CHECK(!open_, "the last document has no end");
  info_.tokens = bytes_ / token_bytes(type_);
  check_input(info_.tokens > 0, "preprocess: the input has no text for ", prefix());
}

std::string PartsAssembly::prefix() const {
  return options_.prefix_of(key_);
}

Path PartsAssembly::file() const {
  return folder_.path() / (key_ + ".bin");
}

void PartsAssembly::add_copy(std::size_t part, i64 from, i64 tokens) {
  const i64 size = token_bytes(type_);
  if (tokens > 0) copies_.push_back({.part = part, .from = from * size, .bytes = tokens * size, .to = bytes_});
  bytes_ += tokens * size;
}

void PartsAssembly::end_document(std::size_t part) {
  i64 tokens = std::exchange(open_, std::nullopt).value_or(0);
  if (tokens == 0) {
    ++empty_documents_;
  } else if (options_.append_eod) {
    const i64 size = token_bytes(type_);
    copies_.push_back({.part = part, .bytes = size, .to = bytes_, .is_eod = true});
    bytes_ += size;
    ++tokens;
  }
  check_input(tokens <= std::numeric_limits<i32>::max(), prefix(),
              ": a document has more than 2147483647 tokens, which ",
              "the .idx format cannot hold; cut the text into several documents");
  ended_.push_back(tokens);
}

void PartsAssembly::add_part(std::size_t part, const PartOfKey& note) {
  MCPP_CHECK(note.continues || !open_, "part ", part, " does not go on with the document before");
  info_.source_bytes += note.info.source_bytes;
  info_.source_words += note.info.source_words;
  empty_documents_ += note.empty_documents;
  i64 from = 0;
  if (note.continues) {
    add_copy(part, 0, note.head_tokens);
    open_ = open_.value_or(0) + note.head_tokens;
    from = note.head_tokens;
    if (!note.head_ends) return;
    end_document(part);
  }
  add_copy(part, from, note.info.tokens - from);
  if (note.is_open) open_ = note.open_tokens;
}

void PartsAssembly::create() const {
  SharedFile file(this->file());
  file.set_size(bytes_);
  file.sync();
}

void PartsAssembly::write(int share, int shares) const {
  SharedFile file(this->file());
  std::optional<MappedFile> source;
  std::size_t mapped = parts_.size();
  for (const Copy& copy : copies_) {
    if (static_cast<int>(copy.part % static_cast<std::size_t>(shares)) != share) continue;
    if (copy.is_eod) {
      file.write_at(copy.to, token_as_bytes(info_.eod, type_));
      continue;
    }
    if (mapped != copy.part) source.emplace(bin_path(parts_[copy.part]));
    mapped = copy.part;
    file.write_at(copy.to,
                  source->bytes().subspan(static_cast<std::size_t>(copy.from), static_cast<std::size_t>(copy.bytes)));
  }
  file.sync();
}

IndexContent PartsAssembly::index() const {
  IndexContent index{.type = type_, .lengths = {}, .sequences_in_document = {}};
  std::size_t ended = 0;
  const auto add_ended = [&] {
    const i64 tokens = ended_[ended++];
    if (tokens > 0) index.lengths.push_back(static_cast<i32>(tokens));
    if (tokens > 0 || options_.keep_empty) index.sequences_in_document.push_back(tokens > 0 ? 1 : 0);
  };
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const PartOfKey& note = notes_[part];
    const IndexedDataset dataset(parts_[part]);
    i64 begin = 0, end = dataset.num_documents();
    if (note.continues) {
      ++begin;
      if (note.head_ends) add_ended();
    }
    if (note.is_open && end > begin) --end;
    for (i64 document = begin; document < end; ++document) {
      const i64 first = dataset.document_begin(document), last = dataset.document_begin(document + 1);
      for (i64 sequence = first; sequence < last; ++sequence)
        index.lengths.push_back(static_cast<i32>(dataset.length(sequence)));
      index.sequences_in_document.push_back(static_cast<i32>(last - first));
    }
  }
  return index;
}

PreprocessOutput PartsAssembly::publish() const {
  const IndexContent index = this->index();
  PreprocessOutput output{.prefix = prefix(), .info = info_};
  output.info.documents = static_cast<i64>(index.sequences_in_document.size());
  const Path bin = bin_path(output.prefix);
  publish_dataset(output.prefix, index, [&] {
    std::filesystem::rename(file(), bin);
    fsync_path(bin.has_parent_path() ? bin.parent_path() : Path("."));
  });
  write_dataset_info(output.prefix, output.info);
  return output;
}

}  // namespace mcpp

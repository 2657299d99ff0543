#include "data/parts/assemble.h"

#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace mcpp {
namespace {

std::vector<std::byte> token_as_bytes(i64 token, TokenType type) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(token_bytes(type)));
  std::memcpy(bytes.data(), &token, bytes.size());  // little endian, as the files are
  return bytes;
}

}  // namespace

PartsAssembly::PartsAssembly(const PartsFolder& folder, std::size_t key, const PreprocessOptions& options, int process)
    : folder_(folder),
      options_(options),
      key_(key),
      prefix_(options.prefix_of(folder.keys()[key])),
      publishes_(process == 0),
      tokens_(folder.joined_path(folder.keys()[key]), process) {}

void PartsAssembly::add(const WorkUnit& unit, const PartNote& note, int owner) {
  const PartOfKey& part = note.keys[key_];
  MCPP_CHECK(part.continues || !open_, unit.identity(), " does not go on with the document before");
  const i64 bytes = info_.source_bytes + part.info.source_bytes, words = info_.source_words + part.info.source_words;
  info_ = part.info;
  info_.source_bytes = bytes;
  info_.source_words = words;
  index_.type = token_type_for_vocab(info_.vocab_size);
  empty_documents_ += part.empty_documents;
  const Path prefix = folder_.prefix(unit, folder_.keys()[key_]);
  add_tokens(prefix, part, owner);
  if (publishes_) add_index(prefix, part);
}

void PartsAssembly::add_tokens(const Path& prefix, const PartOfKey& part, int owner) {
  std::optional<MappedFile> file;
  const auto append = [&](i64 from, i64 tokens) {
    const i64 size = token_bytes(index_.type);
    tokens_.append(tokens * size, owner, [&] {
      if (!file) file.emplace(bin_path(prefix));
      return file->bytes().subspan(static_cast<std::size_t>(from * size), static_cast<std::size_t>(tokens * size));
    });
  };
  i64 from = 0;
  if (part.continues) {
    append(0, part.head_tokens);
    open_ = open_.value_or(0) + part.head_tokens;
    if (!part.head_ends) return;
    end_document(owner);
    from = part.head_tokens;
  }
  append(from, part.info.tokens - from);
  if (part.is_open) open_ = part.open_tokens;
}

void PartsAssembly::end_document(int owner) {
  i64 tokens = std::exchange(open_, std::nullopt).value_or(0);
  if (tokens == 0) {
    ++empty_documents_;
  } else if (options_.append_eod) {
    const std::vector<std::byte> eod = token_as_bytes(info_.eod, index_.type);
    tokens_.append(std::ssize(eod), owner, [&] { return std::span(eod); });
    ++tokens;
  }
  check_input(tokens <= std::numeric_limits<i32>::max(), prefix_,
              ": a document has more than 2147483647 tokens, which ",
              "the .idx format cannot hold; cut the text into several documents");
  if (!publishes_) return;
  if (tokens > 0) index_.lengths.push_back(static_cast<i32>(tokens));
  if (tokens > 0 || options_.keep_empty) index_.sequences_in_document.push_back(tokens > 0 ? 1 : 0);
}

/// The documents that lie in this part alone.
void PartsAssembly::add_index(const Path& prefix, const PartOfKey& part) {
  const IndexedDataset dataset(prefix);
  const i64 begin = part.continues ? 1 : 0;
  i64 end = dataset.num_documents();
  if (part.is_open && end > begin) --end;
  for (i64 document = begin; document < end; ++document) {
    const i64 first = dataset.document_begin(document), last = dataset.document_begin(document + 1);
    for (i64 sequence = first; sequence < last; ++sequence)
      index_.lengths.push_back(static_cast<i32>(dataset.length(sequence)));
    index_.sequences_in_document.push_back(static_cast<i32>(last - first));
  }
}

void PartsAssembly::finish() const {
  MCPP_CHECK(!open_, "the last document has no end");
  check_input(tokens_.size() > 0, "preprocess: the input has no text for ", prefix_);
  tokens_.sync();
}

PreprocessOutput PartsAssembly::publish() const {
  PreprocessOutput output{.prefix = prefix_, .info = info_};
  output.info.documents = std::ssize(index_.sequences_in_document);
  output.info.tokens = tokens_.size() / token_bytes(index_.type);
  const Path bin = bin_path(prefix_);
  publish_dataset(prefix_, index_, [&] {
    std::filesystem::rename(tokens_.path(), bin);
    fsync_path(bin.has_parent_path() ? bin.parent_path() : Path("."));
  });
  write_dataset_info(prefix_, output.info);
  return output;
}

}  // namespace mcpp

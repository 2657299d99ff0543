#include "data/dataset/index/indexed_dataset.h"

#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/file.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"

namespace mcpp {
namespace {

constexpr std::string_view kTypeNames[] = {"",      "uint8",   "int8",    "int16", "int32",
                                           "int64", "float64", "float32", "uint16"};
constexpr i64 kTypeBytes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};

Path with_suffix(const Path& prefix, std::string_view suffix) {
  Path path = prefix;
  path += suffix;
  return path;
}

/// Fails if a file is missing; hints at the prefix if "corpus.bin" was passed instead of "corpus".
void check_present(const Path& prefix) {
  const auto extension = prefix.extension();
  const bool is_file_name = extension == ".bin" || extension == ".idx";
  for (const Path& path : {idx_path(prefix), bin_path(prefix)}) {
    std::error_code unknown;
    if (std::filesystem::is_symlink(path, unknown)) check_path_exists(path);
    const bool exists = is_s3_path(path) ? stored_file_exists(path) : std::filesystem::exists(path, unknown);
    check_input(exists, "dataset ", prefix.string(), ": there is no file ", path.string(),
                is_file_name ? "; specify the prefix without .bin or .idx"
                             : "; a dataset is the common prefix of a .bin and an .idx file made by preprocess");
  }
}

/// Copies a value because the arrays of .idx are not aligned.
template <class T>
T load_at(const MappedFile& idx, i64 byte_offset) {
  T value;
  std::memcpy(&value, idx.bytes().data() + byte_offset, sizeof(T));
  return value;
}

}  // namespace

i64 token_bytes(TokenType type) {
  return kTypeBytes[static_cast<std::size_t>(type)];
}

std::string_view token_type_name(TokenType type) {
  return kTypeNames[static_cast<std::size_t>(type)];
}

Path bin_path(const Path& prefix) {
  return with_suffix(prefix, ".bin");
}

Path idx_path(const Path& prefix) {
  return with_suffix(prefix, ".idx");
}

IndexHeader read_index_header(const MappedFile& idx) {
  const std::string name = idx.path().string();
  const u64 size = idx.bytes().size();
  check_input(size >= kIndexHeaderBytes, name, ": truncated: ", size, " bytes; the header alone has ",
              kIndexHeaderBytes);
  check_input(std::memcmp(idx.bytes().data(), kIndexMagic.data(), kIndexMagic.size()) == 0, name,
              ": not a Megatron index file (it does not begin with MMIDIDX)");
  const u64 version = load_at<u64>(idx, 9);
  check_input(version == 1, name, ": version ", version, " of the index format; only version 1 is supported");
  const int code = load_at<u8>(idx, 17);
  check_input(code >= 1 && code <= 8, name, ": dtype code ", code, " is unknown (1 to 8 are defined)");
  const auto type = static_cast<TokenType>(code);
  check_input(type != TokenType::F32 && type != TokenType::F64, name, ": holds ", token_type_name(type),
              " values; tokens must be integers");

  const u64 sequences = load_at<u64>(idx, 18), document_entries = load_at<u64>(idx, 26);
  // A sequence takes 12 bytes and a document 8. Bounding both by the file size first avoids overflow in the sums below.
  check_input(sequences <= size / 12 && document_entries <= size / 8, name, ": truncated or damaged: ", sequences,
              " sequences and ", document_entries, " document entries do not fit in ", size, " bytes");
  check_input(document_entries >= 1, name, ": damaged: no document entries (the first, 0, is always present)");
  const u64 expected = kIndexHeaderBytes + 12 * sequences + 8 * document_entries;
  check_input(size >= expected, name, ": truncated: ", size, " bytes, but ", sequences, " sequences and ",
              document_entries, " document entries need ", expected);
  // Megatron's multimodal files append one mode byte per sequence.
  check_input(size == expected || size == expected + sequences, name, ": damaged: ", size, " bytes where ", expected,
              " are expected for ", sequences, " sequences and ", document_entries, " document entries");
  check_input(sequences <= static_cast<u64>(std::numeric_limits<i32>::max()), name, ": ", sequences,
              " sequences; at most 2147483647 can be indexed");
  return {.type = type, .sequences = sequences, .document_entries = document_entries};
}

IndexedDataset::IndexedDataset(const Path& prefix) : prefix_(prefix) {
  ObjectConnections connections;
  open(connections);
}

IndexedDataset::IndexedDataset(const Path& prefix, ObjectConnections& connections) : prefix_(prefix) {
  open(connections);
}

void IndexedDataset::open(ObjectConnections& connections) {
  check_present(prefix_);
  if (!is_s3_path(prefix_)) {
    open_files(connections);
    return;
  }
  try {
    open_files(connections);
  } catch (const Error& error) {  // may name only the local copy
    fail(error.code(), "dataset ", prefix_.string(), ": ", error.what());
  }
}

void IndexedDataset::open_files(ObjectConnections& connections) {
  bin_ = TokenFile(bin_path(prefix_), connections);
  idx_ = MappedFile(local_copy(idx_path(prefix_)));
  check_header();
  check_sequences();
  check_documents();
}

template <class T>
T IndexedDataset::load(i64 byte_offset) const {
  return load_at<T>(idx_, byte_offset);
}

void IndexedDataset::check_header() {
  const IndexHeader header = read_index_header(idx_);
  type_ = header.type;
  sequences_ = static_cast<i64>(header.sequences);
  documents_ = static_cast<i64>(header.document_entries) - 1;
}

void IndexedDataset::check_sequences() {
  const std::string name = idx_.path().string();
  const i64 width = token_bytes(type_);
  i64 expected = 0;  // cannot overflow: checked against the size of the .bin below
  const auto available = static_cast<i64>(bin_.size());
  for (i64 i = 0; i < sequences_; ++i) {
    const i64 tokens = load<i32>(kIndexHeaderBytes + 4 * i);
    check_input(tokens >= 0, name, ": damaged: sequence ", i, " has the negative length ", tokens);
    const i64 offset = byte_offset_of(i);
    check_input(offset == expected, name, ": damaged: sequence ", i, " begins at byte ", offset,
                " of the .bin file, but the sequences before it end at ", expected);
    expected += tokens * width;
    check_input(expected <= available, name, ": sequence ", i, " ends at byte ", expected, ", but ",
                bin_.path().string(), " has only ", available,
                " bytes; it is truncated or belongs to a different index");
  }
  check_input(expected == available, name, ": describes ", expected, " bytes of tokens, but ", bin_.path().string(),
              " has ", available, "; the two files do not belong together");
  tokens_ = expected / width;
}

void IndexedDataset::check_documents() const {
  const std::string name = idx_.path().string();
  check_input(document_begin(0) == 0, name, ": damaged: the first document begins at sequence ", document_begin(0),
              ", not 0");
  for (i64 i = 1; i <= documents_; ++i) {
    check_input(document_begin(i) >= document_begin(i - 1), name, ": damaged: document ", i, " begins at sequence ",
                document_begin(i), ", before document ", i - 1, " at ", document_begin(i - 1));
  }
  check_input(document_begin(documents_) == sequences_, name, ": damaged: the documents end at sequence ",
              document_begin(documents_), ", but there are ", sequences_, " sequences");
}

i64 IndexedDataset::length(i64 sequence) const {
  MCPP_CHECK(sequence >= 0 && sequence < sequences_, "sequence ", sequence, " of ", sequences_);
  return load<i32>(kIndexHeaderBytes + 4 * sequence);
}

i64 IndexedDataset::byte_offset_of(i64 sequence) const {
  return load<i64>(kIndexHeaderBytes + 4 * sequences_ + 8 * sequence);
}

i64 IndexedDataset::document_begin(i64 document) const {
  MCPP_CHECK(document >= 0 && document <= documents_, "document ", document, " of ", documents_);
  return load<i64>(kIndexHeaderBytes + 12 * sequences_ + 8 * document);
}

i64 IndexedDataset::document_of(i64 sequence) const {
  i64 low = 0, high = documents_;  // invariant: document_begin(low) <= sequence < document_begin(high)
  while (high - low > 1) {
    const i64 middle = low + (high - low) / 2;
    (document_begin(middle) <= sequence ? low : high) = middle;
  }
  return low;
}

template <class T>
void IndexedDataset::read_as(i64 sequence, i64 offset, std::span<i32> out) const {
  std::vector<std::byte> buffer;
  const auto first = static_cast<u64>(byte_offset_of(sequence) + offset * static_cast<i64>(sizeof(T)));
  const std::byte* from = bin_.read(first, out.size() * sizeof(T), buffer).data();
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) > sizeof(i32)) {
      check_input(value == static_cast<i32>(value), bin_path(prefix_).string(), ": sequence ", sequence, ", token ",
                  offset + static_cast<i64>(i), ": ", value, " is not a token id");
    }
    out[i] = static_cast<i32>(value);
  }
}

void IndexedDataset::read(i64 sequence, i64 offset, std::span<i32> out) const {
  const i64 end = offset + static_cast<i64>(out.size());
  MCPP_CHECK(offset >= 0 && end <= length(sequence), "tokens [", offset, ", ", end, ") are not in sequence ", sequence,
             " of ", length(sequence), " tokens in ", prefix_.string());
  switch (type_) {
    case TokenType::U8:
      return read_as<u8>(sequence, offset, out);
    case TokenType::I8:
      return read_as<i8>(sequence, offset, out);
    case TokenType::I16:
      return read_as<std::int16_t>(sequence, offset, out);
    case TokenType::U16:
      return read_as<u16>(sequence, offset, out);
    case TokenType::I32:
      return read_as<i32>(sequence, offset, out);
    case TokenType::I64:
      return read_as<i64>(sequence, offset, out);
    case TokenType::F32:
    case TokenType::F64:
      break;  // rejected when opened
  }
  fail(ExitCode::Internal, "unreadable token type in ", prefix_.string());
}

}  // namespace mcpp

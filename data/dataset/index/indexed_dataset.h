// Tokenized documents on disk in Megatron-LM's format. <prefix>.bin holds the concatenated tokens; <prefix>.idx
// (version 1, little endian) holds the start of each sequence and document:
//
//   offset  0  "MMIDIDX\0\0", u64 version = 1, u8 dtype code, u64 S = sequences, u64 D = documents + 1
//          34  i32[S] tokens per sequence, i64[S] byte offsets into .bin, i64[D] first sequence of each document
//
// A document is one sequence unless it was split into sentences. Both files are memory-mapped. Of a dataset in an
// object store, <prefix>.idx is copied to the cache of the node, and <prefix>.bin is read in blocks through that cache.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "data/dataset/index/token_file.h"

namespace mcpp {

/// Codes of the .idx header.
enum class TokenType : u8 { U8 = 1, I8, I16, I32, I64, F64, F32, U16 };

i64 token_bytes(TokenType type);
std::string_view token_type_name(TokenType type);
/// Returns the type that Megatron chooses: two bytes if all ids fit, with its margin for special tokens.
constexpr TokenType token_type_for_vocab(i64 vocab_size) {
  return vocab_size < 65500 ? TokenType::U16 : TokenType::I32;
}

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr i64 kIndexHeaderBytes = 34;

Path bin_path(const Path& prefix);  ///< <prefix>.bin
Path idx_path(const Path& prefix);  ///< <prefix>.idx

class IndexedDataset {
 public:
  /// Opens both files and checks every index entry against the size of the .bin. Throws BadInput, naming the file and
  /// the entry, if a file is missing or damaged.
  explicit IndexedDataset(const Path& prefix);
  /// Also shares the connections to an object store with other datasets.
  IndexedDataset(const Path& prefix, ObjectConnections& connections);

  const Path& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  i64 num_sequences() const { return sequences_; }
  i64 num_documents() const { return documents_; }
  i64 num_tokens() const { return tokens_; }
  i64 length(i64 sequence) const;          ///< number of tokens
  i64 document_begin(i64 document) const;  ///< first sequence of a document; `document` may be num_documents()
  i64 document_of(i64 sequence) const;     ///< document that contains the sequence
  void read(i64 sequence, i64 offset, std::span<i32> out) const;  ///< reads tokens [offset, offset + out.size())

  u64 bin_bytes() const { return bin_.size(); }
  /// Returns the XXH3-128 checksum of the entire .idx file.
  std::string index_checksum() const { return checksum_hex(idx_.bytes()); }

 private:
  void open(ObjectConnections& connections);
  void open_files(ObjectConnections& connections);
  void check_header();
  void check_sequences();
  void check_documents() const;
  template <class T>
  T load(i64 byte_offset) const;  // the arrays of .idx are not aligned
  i64 byte_offset_of(i64 sequence) const;
  template <class T>
  void read_as(i64 sequence, i64 offset, std::span<i32> out) const;

  Path prefix_;
  TokenFile bin_;
  MappedFile idx_;
  TokenType type_{};
  i64 sequences_ = 0, documents_ = 0, tokens_ = 0;
};

/// Header of an .idx file; see data/dataset/index/indexed_dataset.h.
struct IndexHeader {
  TokenType type{};
  u64 sequences = 0, document_entries = 0;  ///< document_entries >= 1; both are bounded by the file size
};

/// Reads the header. Throws BadInput if the file is truncated or not an .idx file of integer tokens.
IndexHeader read_index_header(const MappedFile& idx);

}  // namespace mcpp

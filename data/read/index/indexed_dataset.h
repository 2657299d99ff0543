// Tokenised documents on disk, as Megatron-LM writes them: <prefix>.bin holds the tokens one after another,
// <prefix>.idx (version 1, little endian) says where each sequence and document begins:
//
//   offset  0  "MMIDIDX\0\0", u64 version = 1, u8 dtype code, u64 S = sequences, u64 D = documents + 1
//          34  i32[S] tokens per sequence, i64[S] byte offsets into .bin, i64[D] first sequence of each document
//
// A document is one sequence unless it was cut into sentences. Both files are mapped, never read whole.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace mcpp {

/// Codes of the .idx header.
enum class TokenType : u8 { U8 = 1, I8, I16, I32, I64, F64, F32, U16 };

i64 token_bytes(TokenType type);
std::string_view token_type_name(TokenType type);
/// Megatron's choice: two bytes where all ids fit, with its margin for special tokens.
constexpr TokenType token_type_for_vocab(i64 vocab_size) {
  return vocab_size < 65500 ? TokenType::U16 : TokenType::I32;
}

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr i64 kIndexHeaderBytes = 34;

Path bin_path(const Path& prefix);  ///< <prefix>.bin
Path idx_path(const Path& prefix);  ///< <prefix>.idx

class IndexedDataset {
 public:
  /// Maps both files and checks every entry of the index against the size of the .bin. BadInput, naming the file and
  /// the entry, when one is missing or damaged.
  explicit IndexedDataset(const Path& prefix);

  const Path& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  i64 num_sequences() const { return sequences_; }
  i64 num_documents() const { return documents_; }
  i64 num_tokens() const { return tokens_; }
  i64 length(i64 sequence) const;          ///< tokens of the sequence
  i64 document_begin(i64 document) const;  ///< its first sequence; document may be num_documents()
  i64 document_of(i64 sequence) const;     ///< the document that holds the sequence
  void read(i64 sequence, i64 offset, std::span<i32> out) const;  ///< tokens [offset, offset + out.size())

  u64 bin_bytes() const { return bin_.bytes().size(); }
  /// XXH3-128 of the whole .idx.
  std::string index_checksum() const { return checksum_hex(idx_.bytes()); }

 private:
  void check_header();
  void check_sequences();
  void check_documents() const;
  template <class T>
  T load(i64 byte_offset) const;  // the arrays of .idx are not aligned
  i64 byte_offset_of(i64 sequence) const;
  template <class T>
  void read_as(i64 sequence, i64 offset, std::span<i32> out) const;

  Path prefix_;
  MappedFile bin_, idx_;
  TokenType type_{};
  i64 sequences_ = 0, documents_ = 0, tokens_ = 0;
};

}  // namespace mcpp

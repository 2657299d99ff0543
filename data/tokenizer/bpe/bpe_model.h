// Conversion of words to ids by byte pair encoding.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// Table of merges, indexed by the ids of the pair.
class MergeTable {
 public:
  static constexpr u32 kNever = ~u32{0};  ///< rank of a pair that does not merge
  struct Entry {
    u64 pair = ~u64{0};
    u32 rank = kNever;
    u32 result = 0;
  };

  explicit MergeTable(std::span<const Merge> merges);
  /// Returns the merge of this pair; its rank is kNever if there is none.
  const Entry& find(u32 left, u32 right) const {
    const u64 pair = u64{left} << 32 | right;
    std::size_t slot = hash(pair) & mask_;
    while (entries_[slot].pair != pair && entries_[slot].rank != kNever) slot = (slot + 1) & mask_;
    return entries_[slot];
  }

 private:
  static std::size_t hash(u64 pair) {
    const u64 mixed = pair * 0x9E37'79B9'7F4A'7C15;
    return static_cast<std::size_t>(mixed >> 32 ^ mixed);
  }

  std::vector<Entry> entries_;
  std::size_t mask_ = 0;
};

/// Byte pair encoding model. Const methods are thread-safe.
class BpeModel {
 public:
  /// Working memory of encode(), for one call at a time.
  struct Workspace {
    std::vector<u32> ids;
    std::vector<const MergeTable::Entry*> merges;
    std::vector<i32> previous, next;
  };

  /// Throws BadInput, naming `source`, if a byte cannot be encoded.
  BpeModel(const BpeDescription& description, const std::string& source);

  /// Appends the ids of `word`, which must be non-empty UTF-8.
  void encode(std::string_view word, Workspace& workspace, std::vector<i32>& ids) const;

 private:
  void learn_bytes(const BpeDescription& description, const std::string& source);
  void learn_characters(const BpeDescription& description, const std::string& source);
  void encode_bytes(std::string_view word, std::vector<u32>& ids) const;
  void encode_characters(std::string_view word, std::vector<u32>& ids) const;
  bool encode_in_byte_pieces(std::string_view character, std::vector<u32>& ids) const;
  void merge_short(Workspace& workspace) const;
  void merge_long(Workspace& workspace) const;

  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Words = std::unordered_map<std::string, u32, TextHash, std::equal_to<>>;

  MergeTable merges_;
  bool is_byte_level_ = false, fuse_unknown_ = false;
  std::optional<i32> unknown_;
  std::array<i32, 256> byte_ids_{};  // -1 = no such piece
  Words characters_;                 // used unless the model is byte-level
  Words words_;                      // used with ignore_merges
};

}  // namespace mcpp

// Cache of encoded words: in natural text nearly all words recur.
#pragma once
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Cache of bounded size, which is cleared when it is full.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 64;  ///< longer words seldom recur

  static u64 hash(std::string_view word);

  /// Returns the ids of an inserted word, valid until the next insert(); std::nullopt if the word is not in the cache.
  std::optional<std::span<const i32>> find(std::string_view word, u64 hash) const;
  /// Inserts a word that is not in the cache.
  void insert(std::string_view word, u64 hash, std::span<const i32> ids);

 private:
  struct Slot {
    u32 hash = 0;
    u32 at = 0;     // position of the ids, then of the word, in store_
    u16 bytes = 0;  // 0 = free
    u16 ids = 0;
  };
  static constexpr std::size_t kSlots = std::size_t{1} << 17, kMaxWords = kSlots / 2;

  std::vector<Slot> slots_;  // empty before the first word
  std::vector<i32> store_;
  std::size_t words_ = 0;
};

}  // namespace mcpp

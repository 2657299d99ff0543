#include "data/tokenizer/bpe/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace mcpp {

u64 WordCache::hash(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

std::optional<std::span<const i32>> WordCache::find(std::string_view word, u64 hash) const {
  if (slots_.empty()) return std::nullopt;
  for (std::size_t i = hash % kSlots; slots_[i].bytes > 0; i = (i + 1) % kSlots) {
    const Slot& slot = slots_[i];
    if (slot.hash != static_cast<u32>(hash >> 32) || slot.bytes != word.size()) continue;
    const i32* ids = store_.data() + slot.at;
    if (std::memcmp(ids + slot.ids, word.data(), word.size()) == 0) return std::span(ids, slot.ids);
  }
  return std::nullopt;
}

void WordCache::insert(std::string_view word, u64 hash, std::span<const i32> ids) {
  if (slots_.empty() || words_ == kMaxWords) {
    slots_.assign(kSlots, {});
    store_.clear();
    words_ = 0;
  }
  std::size_t i = hash % kSlots;
  while (slots_[i].bytes > 0) i = (i + 1) % kSlots;
  slots_[i] = {static_cast<u32>(hash >> 32), static_cast<u32>(store_.size()), static_cast<u16>(word.size()),
               static_cast<u16>(ids.size())};
  store_.insert(store_.end(), ids.begin(), ids.end());
  const std::size_t at = store_.size();
  store_.resize(at + (word.size() + sizeof(i32) - 1) / sizeof(i32));
  std::memcpy(store_.data() + at, word.data(), word.size());
  ++words_;
}

}  // namespace mcpp

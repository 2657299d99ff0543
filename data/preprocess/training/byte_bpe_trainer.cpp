#include "data/preprocess/training/byte_bpe_trainer.h"

#include <algorithm>
#include <array>
#include <functional>

#include "data/tokenizer/bpe/byte_characters.h"

namespace mcpp {
namespace {

using Pair = u64;  // left id in the upper half: sorts as (left, right)

Pair pack_pair(u32 left, u32 right) {
  return Pair{left} << 32 | right;
}

/// Pair to be merged with the words that contained it when it was queued. A pair that appears later in other words is
/// queued again separately: `tokenizers` does so, and the learned merges depend on it.
struct Candidate {
  i64 count = 0;
  Pair pair = 0;
  std::vector<u32> words;

  /// Orders by count; ties go to the pair of lowest ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const std::vector<std::string>& special_tokens);
  void merge_until(i64 vocab_size, i64 min_frequency);
  BpeDescription description() const;

 private:
  using WordsOfPair = std::unordered_map<Pair, std::vector<u32>>;

  u32 id_of(const std::string& piece);
  void count_pairs();
  void push_found(WordsOfPair& found);
  void push(Candidate candidate);
  Candidate pop();
  void merge(const Candidate& candidate);
  void change(Pair pair, i64 by, u32 word, WordsOfPair& found);
  void merge_in_word(u32 word, Pair pair, u32 result, WordsOfPair& found);

  std::size_t special_;
  std::vector<std::string> pieces_;  // bytes, except for special tokens
  std::unordered_map<std::string, u32> ids_;
  std::vector<std::vector<u32>> words_;  // current pieces of each word
  std::vector<i64> counts_;              // occurrences of each word
  std::unordered_map<Pair, i64> pair_counts_;
  std::vector<Candidate> queue_;  // binary heap
  std::vector<std::pair<Pair, u32>> merges_;
};

Trainer::Trainer(const WordCounts& words, const std::vector<std::string>& special_tokens) {
  for (const std::string& token : special_tokens) id_of(token);
  special_ = pieces_.size();
  std::array<u32, 256> byte_ids{};
  for (const char byte : bytes_by_character()) byte_ids[static_cast<u8>(byte)] = id_of(std::string(1, byte));
  for (const auto& [word, count] : words) {
    auto& ids = words_.emplace_back();
    for (const char byte : word) ids.push_back(byte_ids[static_cast<u8>(byte)]);
    counts_.push_back(count);
  }
  count_pairs();
}

u32 Trainer::id_of(const std::string& piece) {
  const auto [known, is_new] = ids_.emplace(piece, static_cast<u32>(pieces_.size()));
  if (is_new) pieces_.push_back(piece);
  return known->second;
}

void Trainer::count_pairs() {
  WordsOfPair found;
  for (u32 word = 0; word < words_.size(); ++word) {
    const auto& ids = words_[word];
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) change(pack_pair(ids[i], ids[i + 1]), 1, word, found);
  }
  push_found(found);
}

void Trainer::change(Pair pair, i64 by, u32 word, WordsOfPair& found) {
  pair_counts_[pair] += by * counts_[word];
  if (by < 0) return;
  auto& words = found[pair];
  if (words.empty() || words.back() != word) words.push_back(word);
}

void Trainer::push_found(WordsOfPair& found) {
  for (auto& [pair, words] : found) {
    const i64 count = pair_counts_[pair];
    if (count > 0) push({count, pair, std::move(words)});
  }
}

void Trainer::push(Candidate candidate) {
  queue_.push_back(std::move(candidate));
  std::ranges::push_heap(queue_, std::less<>());
}

Candidate Trainer::pop() {
  std::ranges::pop_heap(queue_, std::less<>());
  Candidate top = std::move(queue_.back());
  queue_.pop_back();
  return top;
}

void Trainer::merge_until(i64 vocab_size, i64 min_frequency) {
  while (static_cast<i64>(pieces_.size()) < vocab_size && !queue_.empty()) {
    Candidate top = pop();
    const i64 count = pair_counts_[top.pair];
    if (top.count != count) {
      top.count = count;
      push(std::move(top));
      continue;
    }
    if (count < std::max<i64>(1, min_frequency)) break;
    merge(top);
  }
}

void Trainer::merge(const Candidate& candidate) {
  const auto left = static_cast<u32>(candidate.pair >> 32), right = static_cast<u32>(candidate.pair);
  const u32 result = id_of(pieces_[left] + pieces_[right]);
  merges_.emplace_back(candidate.pair, result);
  WordsOfPair found;
  for (const u32 word : candidate.words) merge_in_word(word, candidate.pair, result, found);
  push_found(found);
}

/// Merges a pair within one word. The merged pair's count is not updated, since it is read again only if another word
/// queues the pair anew.
void Trainer::merge_in_word(u32 word, Pair pair, u32 result, WordsOfPair& found) {
  auto& ids = words_[word];
  std::size_t end = 0;  // end of the output
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + 1 == ids.size() || pack_pair(ids[i], ids[i + 1]) != pair) {
      ids[end++] = ids[i];
      continue;
    }
    const u32 left = ids[i], right = ids[i + 1];
    if (end > 0) {
      change(pack_pair(ids[end - 1], left), -1, word, found);
      change(pack_pair(ids[end - 1], result), 1, word, found);
    }
    if (i + 2 < ids.size()) {
      change(pack_pair(right, ids[i + 2]), -1, word, found);
      change(pack_pair(result, ids[i + 2]), 1, word, found);
    }
    ids[end++] = result;
    ++i;
  }
  ids.resize(end);
}

BpeDescription Trainer::description() const {
  BpeDescription description;
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    description.pieces.push_back(id < special_ ? pieces_[id] : byte_characters(pieces_[id]));
    if (id < special_)
      description.added.push_back({.id = static_cast<i32>(id), .content = pieces_[id], .in_vocabulary = true});
  }
  std::unordered_map<Pair, std::size_t> last;  // for pairs merged twice, the last index is used
  for (std::size_t i = 0; i < merges_.size(); ++i) last[merges_[i].first] = i;
  for (std::size_t i = 0; i < merges_.size(); ++i) {
    const auto& [pair, result] = merges_[i];
    if (last[pair] == i)
      description.merges.push_back(
          {static_cast<u32>(pair >> 32), static_cast<u32>(pair), static_cast<u32>(description.merges.size()), result});
  }
  return description;
}

}  // namespace

BpeDescription train_byte_bpe(const WordCounts& words, const std::vector<std::string>& special_tokens, i64 vocab_size,
                              i64 min_frequency) {
  Trainer trainer(words, special_tokens);
  trainer.merge_until(vocab_size, min_frequency);
  return trainer.description();
}

}  // namespace mcpp

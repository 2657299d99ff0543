// Segmentation of texts by unigram language models, bitwise identical to sentencepiece.
#pragma once
#include <string_view>
#include <vector>

#include "base/types.h"
#include "data/tokenizer/bpe/word_cache.h"
#include "data/tokenizer/byte_trie.h"
#include "data/tokenizer/sentencepiece_model.h"

namespace mcpp {

/// Segmenter with a unigram model. Thread-safe. sentencepiece adds scores up in fp32 from the beginning of a text and,
/// of segmentations with equal sums, takes the first one it finds. Its choice among segmentations of nearly equal
/// score therefore depends on the sum of the scores of all preceding text. This class computes the same sums, and
/// caches a word only together with the margin by which its segmentation is better than the second best.
class UnigramModel {
 public:
  explicit UnigramModel(const SentencepieceModel& model);

  /// Buffers of one thread, reused for the words in the cache.
  struct Workspace {
    template <class Real>
    struct Node {
      Real best = 0;
      double second_best = 0;
      i32 begin = -1, id = -1;
    };
    WordCache cache;
    std::vector<Node<float>> nodes;
    std::vector<Node<double>> exact_nodes;
    std::vector<i32> ends, record;
  };

  /// Appends the ids of `text`, as SentencepieceNormalizer returns it.
  void encode(std::string_view text, Workspace& workspace, std::vector<i32>& ids) const;

 private:
  class Segmentation;
  template <class Real>
  void find_best(std::string_view word, Real start, std::vector<Workspace::Node<Real>>& nodes) const;

  ByteTrie trie_;               // ids of the pieces that text can be encoded to
  std::vector<double> scores_;  // scores, indexed by id
  float unknown_score_ = 0;
  i32 unknown_ = 0;
  std::vector<i32> byte_ids_;  // ids of byte pieces, indexed by byte; empty without byte fallback
  bool splits_at_spaces_, has_exact_sums_;
};

}  // namespace mcpp

#include "data/tokenizer/unigram_model.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/text/utf8.h"

namespace mcpp {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::size_t character_size(std::string_view text) {
  return static_cast<std::size_t>(std::max<i64>(utf8_sequence_length(text), 1));
}

/// First elements of what the cache holds for a word; its ids follow.
struct CachedScores {
  float margin = 0;  // of the best segmentation over all others, per character
  float extent = 0;  // largest magnitude of a sum of scores
};
constexpr std::size_t kCachedScores = 2;

}  // namespace

UnigramModel::UnigramModel(const SentencepieceModel& model) : splits_at_spaces_(pieces_end_at_spaces(model)) {
  float min_score = FLT_MAX, max_score = FLT_MIN;  // FLT_MIN, which is positive, is the library's choice
  for (const SentencePiece& piece : model.pieces) {
    if (piece.type != PieceType::Normal) continue;
    min_score = std::min(min_score, piece.score);
    max_score = std::max(max_score, piece.score);
  }
  constexpr float kUnknownPenalty = 10;
  unknown_score_ = min_score - kUnknownPenalty;
  std::vector<std::string> texts;
  texts.reserve(model.pieces.size());
  std::vector<std::pair<std::string_view, i32>> entries;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const auto id = static_cast<i32>(i);
    const bool is_symbol = piece.type == PieceType::UserDefined;
    scores_.push_back(is_symbol ? static_cast<double>(static_cast<float>(piece.text.size()) * max_score) - 0.1
                                : static_cast<double>(piece.score));
    if (piece.type == PieceType::Unknown) unknown_ = id;
    if (piece.type == PieceType::Byte) byte_ids_.resize(256);
    if (const auto byte = byte_of(piece)) byte_ids_[*byte] = id;
    // A literal space never occurs in normalized text: spaces are U+2581 there.
    if ((piece.type == PieceType::Normal || is_symbol) && piece.text.find(' ') == std::string::npos)
      entries.emplace_back(texts.emplace_back(with_spaces(piece.text)), id);
  }
  trie_ = ByteTrie(std::move(entries));
}

/// Fills nodes[i] with the best segmentation of the first i bytes of `word`, of those that end a piece. The types and
/// comparisons are those of the library (Model::EncodeOptimized), on which its choice among equals depends.
template <class Real>
void UnigramModel::find_best(std::string_view word, Real start, std::vector<Workspace::Node<Real>>& nodes) const {
  nodes.assign(word.size() + 1, {});
  nodes[0].best = start;
  const auto offer = [&](std::size_t begin, std::size_t size, auto sum, i32 id) {
    auto& node = nodes[begin + size];
    if (node.begin == -1 || sum > node.best) {
      node.second_best = node.begin == -1 ? kNever : static_cast<double>(node.best);
      node.best = static_cast<Real>(sum);
      node.begin = static_cast<i32>(begin);
      node.id = id;
    } else {
      node.second_best = std::max(node.second_best, static_cast<double>(sum));
    }
  };
  for (std::size_t begin = 0; begin < word.size();) {
    const std::string_view rest = word.substr(begin);
    const std::size_t character = character_size(rest);
    const Real best = nodes[begin].best;
    bool has_character = false;
    trie_.for_each_prefix(rest, [&](std::size_t size, i32 id) {
      offer(begin, size, scores_[static_cast<std::size_t>(id)] + best, id);
      has_character |= size == character;
    });
    if (!has_character) offer(begin, character, unknown_score_ + best, unknown_);
    begin += character;
  }
}

/// Segmentation of one text, word by word.
class UnigramModel::Segmentation {
 public:
  Segmentation(const UnigramModel& model, Workspace& workspace, std::vector<i32>& ids)
      : model_(model), workspace_(workspace), ids_(ids) {}

  void add(std::string_view word) {
    if (word.size() > WordCache::kLongestWord) return add_computed(word);
    const u64 hash = WordCache::hash(word);
    auto cached = workspace_.cache.find(word, hash);
    if (!cached) {
      insert(word, hash);
      cached = workspace_.cache.find(word, hash);
    }
    const CachedScores scores{std::bit_cast<float>((*cached)[0]), std::bit_cast<float>((*cached)[1])};
    // Each sum is rounded by at most 2^-24 of its magnitude, and each of two segmentations has a sum per character.
    if (!(scores.margin > (std::abs(sum_) + scores.extent) * 0x1p-23f)) return add_computed(word);
    for (const i32 id : cached->subspan(kCachedScores)) {
      sum_ = static_cast<float>(model_.scores_[static_cast<std::size_t>(id)] + sum_);
      ids_.push_back(id);
    }
    is_after_unknown_ = false;
  }

 private:
  /// Words that must always be computed are inserted with a margin of 0.
  void insert(std::string_view word, u64 hash) {
    auto& nodes = workspace_.exact_nodes;
    model_.find_best<double>(word, 0, nodes);
    double margin = std::numeric_limits<float>::max(), extent = 0;
    for (const auto& node : nodes) extent = std::max(extent, std::abs(node.best));
    workspace_.path.clear();
    for (std::size_t end = word.size(); end > 0; end = static_cast<std::size_t>(nodes[end].begin)) {
      margin = std::min(margin, nodes[end].best - nodes[end].second_best);
      if (nodes[end].id == model_.unknown_) margin = 0;
      workspace_.path.push_back(nodes[end].id);
    }
    const auto characters =
        static_cast<double>(std::ranges::count_if(word, [](char c) { return (static_cast<u8>(c) & 0xC0) != 0x80; }));
    // Rounding the bounds themselves must not make them looser.
    workspace_.path.push_back(std::bit_cast<i32>(static_cast<float>(extent * 1.001)));
    workspace_.path.push_back(std::bit_cast<i32>(static_cast<float>(margin / (characters + 1) * 0.999)));
    std::ranges::reverse(workspace_.path);
    workspace_.cache.insert(word, hash, workspace_.path);
  }

  void add_computed(std::string_view word) {
    auto& nodes = workspace_.nodes;
    model_.find_best<float>(word, sum_, nodes);
    sum_ = nodes[word.size()].best;
    workspace_.path.clear();  // ends of pieces, last first
    for (i32 end = static_cast<i32>(word.size()); end > 0; end = nodes[static_cast<std::size_t>(end)].begin)
      workspace_.path.push_back(end);
    for (auto end = workspace_.path.rbegin(); end != workspace_.path.rend(); ++end) {
      const auto& node = nodes[static_cast<std::size_t>(*end)];
      if (node.id == model_.unknown_)
        add_unknown(
            word[static_cast<std::size_t>(node.begin)] == ' '
                ? kSpaceMark
                : word.substr(static_cast<std::size_t>(node.begin), static_cast<std::size_t>(*end - node.begin)));
      else
        ids_.push_back(node.id);
      is_after_unknown_ = node.id == model_.unknown_;
    }
  }

  /// Several unknown characters in a row are one id, unless they are spelled in bytes.
  void add_unknown(std::string_view character) {
    if (model_.byte_ids_.empty()) {
      if (!is_after_unknown_) ids_.push_back(model_.unknown_);
      return;
    }
    for (const char byte : character) ids_.push_back(model_.byte_ids_[static_cast<u8>(byte)]);
  }

  const UnigramModel& model_;
  Workspace& workspace_;
  std::vector<i32>& ids_;
  float sum_ = 0;  // scores of all that came before
  bool is_after_unknown_ = false;
};

void UnigramModel::encode(std::string_view text, Workspace& workspace, std::vector<i32>& ids) const {
  Segmentation segmentation(*this, workspace, ids);
  while (!text.empty()) {
    const std::size_t end = splits_at_spaces_ ? end_of_word(text) : text.size();
    segmentation.add(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace mcpp

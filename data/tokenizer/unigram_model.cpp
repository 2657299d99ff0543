#include "data/tokenizer/unigram_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/utf8.h"

namespace mcpp {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::size_t character_size(std::string_view text) {
  return static_cast<std::size_t>(std::max<i64>(utf8_sequence_length(text), 1));
}

/// First elements of the cache entry of a word. The pieces of its segmentation follow and, if some of these are
/// unknown, its ids.
struct CachedWord {
  float margin;  // margin of the best segmentation over all others, per character; negative if not computed yet
  float extent;  // largest magnitude of a sum of scores
  i32 pieces;
};
constexpr std::size_t kCachedWordSize = sizeof(CachedWord) / sizeof(i32);

/// Returns true if no sum of scores below kMaxExactSum is rounded, as for models of round_scores().
bool has_exact_sums(const SentencepieceModel& model) {
  return std::ranges::all_of(model.pieces, [](const SentencePiece& piece) {
    return piece.type != PieceType::UserDefined && std::round(piece.score * 1024) == piece.score * 1024;
  });
}
constexpr float kMaxExactSum = 0x1p24f / 1024;

}  // namespace

UnigramModel::UnigramModel(const SentencepieceModel& model)
    : splits_at_spaces_(pieces_end_at_spaces(model)), has_exact_sums_(has_exact_sums(model)) {
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
  scores_[static_cast<std::size_t>(unknown_)] = static_cast<double>(unknown_score_);
}

/// Fills nodes[i] with the best segmentation of the first i bytes of `word`, of those that end a piece. The types and
/// comparisons are the same as in the library (Model::EncodeOptimized), because its choice among equal segmentations
/// depends on them.
template <class Real>
void UnigramModel::find_best(std::string_view word, Real start, std::vector<Workspace::Node<Real>>& nodes) const {
  nodes.assign(word.size() + 1, {});
  nodes[0].best = start;
  const auto consider = [&](std::size_t begin, std::size_t size, auto sum, i32 id) {
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
      consider(begin, size, scores_[static_cast<std::size_t>(id)] + best, id);
      has_character |= size == character;
    });
    if (!has_character) consider(begin, character, unknown_score_ + best, unknown_);
    begin += character;
  }
}

/// Segmentation of one text, one word at a time.
class UnigramModel::Segmentation {
 public:
  Segmentation(const UnigramModel& model, Workspace& workspace, std::vector<i32>& ids)
      : model_(model), workspace_(workspace), ids_(ids) {}

  void add(std::string_view word) {
    if (word.size() > WordCache::kMaxWordBytes) return add_computed(word);
    const u64 hash = WordCache::hash(word);
    auto it = workspace_.cache.find(word, hash);
    if (!it) {
      insert(word, hash);
      it = workspace_.cache.find(word, hash);
    }
    CachedWord cached{};
    std::memcpy(&cached, it->data(), sizeof cached);
    const float extent = std::abs(sum_) + cached.extent;
    // Each sum is rounded by at most 2^-24 of its magnitude, and each of two segmentations has a sum per character.
    const bool is_exact = model_.has_exact_sums_ && extent < kMaxExactSum && cached.margin >= 0;
    if (!is_exact && !(cached.margin > extent * 0x1p-23f)) return add_computed(word);
    const auto pieces = it->subspan(kCachedWordSize, static_cast<std::size_t>(cached.pieces));
    const auto bytes = it->subspan(kCachedWordSize + pieces.size());
    for (const i32 id : pieces) sum_ = static_cast<float>(model_.scores_[static_cast<std::size_t>(id)] + sum_);
    const auto ids = bytes.empty() ? pieces : bytes;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    is_after_unknown_ = false;
  }

 private:
  void insert(std::string_view word, u64 hash) {
    auto& nodes = workspace_.exact_nodes;
    model_.find_best<double>(word, 0, nodes);
    double margin = std::numeric_limits<float>::max(), extent = 0;
    for (const auto& node : nodes) extent = std::max(extent, std::abs(node.best));
    for (std::size_t end = word.size(); end > 0; end = static_cast<std::size_t>(nodes[end].begin))
      margin = std::min(margin, nodes[end].best - nodes[end].second_best);
    std::vector<i32>& record = workspace_.record;
    record.assign(kCachedWordSize, 0);
    bool has_unknown = false;
    for_each_piece(word, nodes, [&](std::string_view, i32 id) {
      record.push_back(id);
      has_unknown |= id == model_.unknown_;
    });
    const std::size_t pieces = record.size() - kCachedWordSize;
    if (has_unknown && model_.byte_ids_.empty())
      margin = -1;  // the ids depend on the word before
    else if (has_unknown)
      for_each_piece(word, nodes, [&](std::string_view piece, i32 id) { append_ids(piece, id, record); });
    const auto characters =
        static_cast<double>(std::ranges::count_if(word, [](char c) { return (static_cast<u8>(c) & 0xC0) != 0x80; }));
    // Rounding the bounds themselves must not make them looser.
    const CachedWord cached{.margin = static_cast<float>(margin / (characters + 1) * 0.999),
                            .extent = static_cast<float>(extent * 1.001),
                            .pieces = static_cast<i32>(pieces)};
    std::memcpy(record.data(), &cached, sizeof cached);
    workspace_.cache.insert(word, hash, record);
  }

  void add_computed(std::string_view word) {
    auto& nodes = workspace_.nodes;
    model_.find_best<float>(word, sum_, nodes);
    sum_ = nodes[word.size()].best;
    for_each_piece(word, nodes, [&](std::string_view piece, i32 id) { append_ids(piece, id, ids_); });
  }

  /// Calls visit(piece, id) for the pieces of the best segmentation found by find_best(), in order.
  template <class Nodes, class Visit>
  void for_each_piece(std::string_view word, const Nodes& nodes, Visit&& visit) {
    std::vector<i32>& ends = workspace_.ends;
    ends.clear();
    for (i32 end = static_cast<i32>(word.size()); end > 0; end = nodes[static_cast<std::size_t>(end)].begin)
      ends.push_back(end);
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
      const auto& node = nodes[static_cast<std::size_t>(*end)];
      const auto begin = static_cast<std::size_t>(node.begin);
      visit(word.substr(begin, static_cast<std::size_t>(*end) - begin), node.id);
    }
  }

  /// Consecutive unknown characters are one id, unless they are encoded as bytes.
  void append_ids(std::string_view piece, i32 id, std::vector<i32>& ids) {
    const bool is_unknown = id == model_.unknown_, is_joined = is_unknown && is_after_unknown_;
    is_after_unknown_ = is_unknown;
    if (is_unknown && !model_.byte_ids_.empty()) {
      for (const char byte : piece == " " ? kSpaceMark : piece) ids.push_back(model_.byte_ids_[static_cast<u8>(byte)]);
    } else if (!is_joined) {
      ids.push_back(id);
    }
  }

  const UnigramModel& model_;
  Workspace& workspace_;
  std::vector<i32>& ids_;
  float sum_ = 0;  // scores of all preceding pieces
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

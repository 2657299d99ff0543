#include "data/tokenizer/bpe/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>

#include "base/check.h"
#include "base/utf8.h"
#include "data/tokenizer/bpe/byte_characters.h"

namespace mcpp {
namespace {

constexpr std::size_t kShortWord = 48;  // up to this length searching all pairs again is faster than a heap

/// Returns "<0x0A>" for 10.
std::string byte_piece(u32 byte) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

/// Returns pieces and ids without tokens that are only added.
std::vector<std::pair<std::string_view, u32>> pieces_of_model(const BpeDescription& description) {
  std::vector<bool> is_outside(description.pieces.size());
  for (const AddedToken& token : description.added)
    is_outside[static_cast<std::size_t>(token.id)] = !token.is_in_vocabulary;
  std::vector<std::pair<std::string_view, u32>> pieces;
  for (std::size_t id = 0; id < description.pieces.size(); ++id)
    if (!description.pieces[id].empty() && !is_outside[id])
      pieces.emplace_back(description.pieces[id], static_cast<u32>(id));
  return pieces;
}

}  // namespace

MergeTable::MergeTable(std::span<const Merge> merges) {
  entries_.resize(std::bit_ceil(2 * merges.size() + 2));
  mask_ = entries_.size() - 1;
  for (const Merge& merge : merges) {  // of duplicate pairs the last counts
    const u64 pair = u64{merge.left} << 32 | merge.right;
    std::size_t slot = hash(pair) & mask_;
    while (entries_[slot].pair != pair && entries_[slot].rank != kNever) slot = (slot + 1) & mask_;
    entries_[slot] = {pair, merge.rank, merge.result};
  }
}

BpeModel::BpeModel(const BpeDescription& description, const std::string& source)
    : merges_(description.merges),
      is_byte_level_(description.is_byte_level),
      fuse_unknown_(description.fuse_unknown),
      unknown_(description.unknown) {
  byte_ids_.fill(-1);
  if (is_byte_level_)
    learn_bytes(description, source);
  else
    learn_characters(description, source);
}

void BpeModel::learn_bytes(const BpeDescription& description, const std::string& source) {
  for (const auto& [piece, id] : pieces_of_model(description)) {
    const std::optional<std::string> bytes = bytes_of_characters(piece);
    if (!bytes) continue;  // text never becomes this piece
    if (bytes->size() == 1) byte_ids_[static_cast<u8>((*bytes)[0])] = static_cast<i32>(id);
    if (description.ignore_merges) words_.emplace(*bytes, id);
  }
  const auto missing = std::ranges::find(byte_ids_, -1);
  if (missing == byte_ids_.end()) return;
  fail(ExitCode::BadInput, source, ": has no piece for the byte ",
       byte_piece(static_cast<u32>(missing - byte_ids_.begin())).substr(1, 4),
       ": text with this byte would be lost; train the tokenizer with the full alphabet of bytes");
}

void BpeModel::learn_characters(const BpeDescription& description, const std::string& source) {
  std::unordered_map<std::string_view, u32> pieces;
  for (const auto& [piece, id] : pieces_of_model(description)) {
    pieces.emplace(piece, id);
    if (utf8_sequence_length(piece) == static_cast<i64>(piece.size())) characters_.emplace(piece, id);
    if (description.ignore_merges) words_.emplace(piece, id);
  }
  std::array<i32, 256> found{};
  bool has_all = description.byte_fallback;
  for (u32 byte = 0; byte < 256 && has_all; ++byte) {
    const auto piece = pieces.find(byte_piece(byte));
    has_all = piece != pieces.end();
    if (has_all) found[byte] = static_cast<i32>(piece->second);
  }
  if (has_all) byte_ids_ = found;
  check_input(
      has_all || (!description.byte_fallback && unknown_), source,
      ": has neither pieces for all bytes, <0x00> to <0xFF>, nor an unk_token: some texts could not be encoded");
}

void BpeModel::encode_bytes(std::string_view word, std::vector<u32>& ids) const {
  ids.resize(word.size());
  for (std::size_t i = 0; i < word.size(); ++i) ids[i] = static_cast<u32>(byte_ids_[static_cast<u8>(word[i])]);
}

bool BpeModel::encode_in_byte_pieces(std::string_view character, std::vector<u32>& ids) const {
  if (byte_ids_[0] < 0) return false;
  for (const char byte : character) ids.push_back(static_cast<u32>(byte_ids_[static_cast<u8>(byte)]));
  return true;
}

void BpeModel::encode_characters(std::string_view word, std::vector<u32>& ids) const {
  ids.clear();
  bool was_unknown = false;
  while (!word.empty()) {
    const std::string_view character = word.substr(0, static_cast<std::size_t>(utf8_sequence_length(word)));
    word.remove_prefix(character.size());
    const auto known = characters_.find(character);
    if (known != characters_.end()) {
      ids.push_back(known->second);
      was_unknown = false;
    } else if (encode_in_byte_pieces(character, ids)) {
      was_unknown = false;
    } else if (!was_unknown || !fuse_unknown_) {
      ids.push_back(static_cast<u32>(*unknown_));
      was_unknown = true;
    }
  }
}

/// merges[i] is the merge of the pieces i and i + 1.
void BpeModel::merge_short(Workspace& workspace) const {
  auto& [ids, merges, previous, next] = workspace;
  merges.resize(ids.size());
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) merges[i] = &merges_.find(ids[i], ids[i + 1]);
  std::size_t size = ids.size();
  while (size > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < size; ++i)
      if (merges[i]->rank < merges[best]->rank) best = i;
    if (merges[best]->rank == MergeTable::kNever) break;
    ids[best] = merges[best]->result;
    std::copy(ids.begin() + static_cast<i64>(best) + 2, ids.begin() + static_cast<i64>(size),
              ids.begin() + static_cast<i64>(best) + 1);
    std::copy(merges.begin() + static_cast<i64>(best) + 1, merges.begin() + static_cast<i64>(size),
              merges.begin() + static_cast<i64>(best));
    --size;
    if (best > 0) merges[best - 1] = &merges_.find(ids[best - 1], ids[best]);
    if (best + 1 < size) merges[best] = &merges_.find(ids[best], ids[best + 1]);
  }
  ids.resize(size);
}

/// Merges a word of any length with a heap of pairs. Pairs that lost a piece to a different merge remain in the heap
/// and are skipped.
void BpeModel::merge_long(Workspace& workspace) const {
  std::vector<u32>& ids = workspace.ids;
  std::vector<i32>&previous = workspace.previous, &next = workspace.next;
  const auto size = static_cast<i32>(ids.size());
  previous.resize(ids.size()), next.resize(ids.size());
  for (i32 i = 0; i < size; ++i)
    previous[static_cast<std::size_t>(i)] = i - 1, next[static_cast<std::size_t>(i)] = i + 1;
  constexpr u32 kGone = ~u32{0};
  struct Candidate {
    u32 rank;
    i32 at;
    u32 left, right;
    bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto id = [&](i32 at) -> u32& { return ids[static_cast<std::size_t>(at)]; };
  const auto consider = [&](i32 at) {
    const i32 after = at < 0 ? size : next[static_cast<std::size_t>(at)];
    if (after >= size) return;
    const auto& merge = merges_.find(id(at), id(after));
    if (merge.rank != MergeTable::kNever) queue.push({merge.rank, at, id(at), id(after)});
  };
  for (i32 i = 0; i < size; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const i32 after = next[static_cast<std::size_t>(best.at)];
    if (id(best.at) != best.left || after >= size || id(after) != best.right) continue;
    id(best.at) = merges_.find(best.left, best.right).result;
    id(after) = kGone;
    const i32 after_next = next[static_cast<std::size_t>(after)];
    next[static_cast<std::size_t>(best.at)] = after_next;
    if (after_next < size) previous[static_cast<std::size_t>(after_next)] = best.at;
    consider(best.at);
    consider(previous[static_cast<std::size_t>(best.at)]);
  }
  std::erase(ids, kGone);
}

void BpeModel::encode(std::string_view word, Workspace& workspace, std::vector<i32>& ids) const {
  if (!words_.empty()) {
    const auto whole = words_.find(word);
    if (whole != words_.end()) return ids.push_back(static_cast<i32>(whole->second));
  }
  if (is_byte_level_)
    encode_bytes(word, workspace.ids);
  else
    encode_characters(word, workspace.ids);
  if (workspace.ids.size() <= kShortWord)
    merge_short(workspace);
  else
    merge_long(workspace);
  ids.insert(ids.end(), workspace.ids.begin(), workspace.ids.end());
}

}  // namespace mcpp

#include "data/parts/part_writer.h"

#include <cstring>

namespace mcpp {
namespace {

std::vector<std::byte> token_as_bytes(i64 token, TokenType type) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(token_bytes(type)));
  std::memcpy(bytes.data(), &token, bytes.size());  // little endian, as the files
  return bytes;
}

/// Returns the subrange of `bytes`, which start at file offset `at`, within [from, to).
std::span<const std::byte> between(i64 from, i64 to, i64 at, std::span<const std::byte> bytes) {
  const i64 size = std::ssize(bytes);
  const i64 first = std::clamp<i64>(from - at, 0, size), last = std::clamp<i64>(to - at, first, size);
  return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

}  // namespace

PartWriter::PartWriter(const PartsFolder& folder) : folder_(folder) {
  for (const std::string& key : folder.keys()) joined_.push_back(std::make_unique<JoinedFile>(folder.joined_path(key)));
}

void PartWriter::write(const UnitTokens& tokens, const std::vector<Place>& places) {
  PartContent part = tokens.part();
  part.note.places = places;
  for (std::size_t k = 0; k < places.size(); ++k) part.edges.push_back(write_blocks(k, tokens, places[k]));
  for (std::size_t k = 0; k < places.size(); ++k)
    if (std::ssize(part.edges[k]) < places[k].end - places[k].begin) joined_[k]->sync();
  folder_.write_part(tokens.unit(), part);
  folder_.remove_tokens(tokens.unit());
}

std::vector<std::byte> PartWriter::write_blocks(std::size_t key, const UnitTokens& tokens, const Place& place) {
  const PartOfKey& part = tokens.part().note.keys[key];
  const TokenType type = part.token_type();
  const std::span<const std::byte> all = tokens.bytes(key);
  const auto head = static_cast<std::size_t>(part.head_tokens * token_bytes(type));
  std::vector<std::byte> eod;  // ends the document that ends with the head
  if (place.end - place.begin > std::ssize(all)) eod = token_as_bytes(part.info.eod, type);

  const WholeBlocks blocks(place.begin, place.end);
  std::vector<std::byte> edges;
  i64 at = place.begin;
  for (const std::span<const std::byte> bytes : {all.first(head), std::span<const std::byte>(eod), all.subspan(head)}) {
    const auto before = between(place.begin, blocks.begin, at, bytes),
               behind = between(blocks.end, place.end, at, bytes),
               inside = between(blocks.begin, blocks.end, at, bytes);
    edges.insert(edges.end(), before.begin(), before.end());
    if (!inside.empty()) joined_[key]->write_at(std::max(at, blocks.begin), inside);
    edges.insert(edges.end(), behind.begin(), behind.end());
    at += std::ssize(bytes);
  }
  return edges;
}

}  // namespace mcpp

#include "data/preprocess/distributed/part_writer.h"

#include <cstring>

namespace mcpp {
namespace {

std::vector<std::byte> token_as_bytes(i64 token, TokenType type) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(token_bytes(type)));
  std::memcpy(bytes.data(), &token, bytes.size());  // little endian, as the files
  return bytes;
}

/// Returns the subrange of `bytes`, which start at file offset `at`, within [from, to).
std::span<const std::byte> clip_to_range(i64 from, i64 to, i64 at, std::span<const std::byte> bytes) {
  const i64 size = std::ssize(bytes);
  const i64 first = std::clamp<i64>(from - at, 0, size), last = std::clamp<i64>(to - at, first, size);
  return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

}  // namespace

PartWriter::PartWriter(const PartsFolder& folder) : folder_(folder) {
  for (const std::string& key : folder.keys())
    output_files_.push_back(std::make_unique<SharedOutputFile>(folder.shared_output_path(key)));
}

void PartWriter::write(const UnitTokens& tokens, const std::vector<OutputRange>& output_ranges) {
  PartContent part = tokens.part();
  part.metadata.output_ranges = output_ranges;
  for (std::size_t k = 0; k < output_ranges.size(); ++k)
    part.edges.push_back(write_blocks(k, tokens, output_ranges[k]));
  for (std::size_t k = 0; k < output_ranges.size(); ++k)
    if (std::ssize(part.edges[k]) < output_ranges[k].end - output_ranges[k].begin) output_files_[k]->sync();
  folder_.write_part(tokens.unit(), part);
  folder_.remove_tokens(tokens.unit());
}

std::vector<std::byte> PartWriter::write_blocks(std::size_t key, const UnitTokens& tokens,
                                                const OutputRange& output_range) {
  const KeyPart& part = tokens.part().metadata.keys[key];
  const TokenType type = part.token_type();
  const std::span<const std::byte> all = tokens.bytes(key);
  const auto head = static_cast<std::size_t>(part.head_tokens * token_bytes(type));
  std::vector<std::byte> eod;  // ends the document that ends with the head
  if (output_range.end - output_range.begin > std::ssize(all)) eod = token_as_bytes(part.info.eod, type);

  const AlignedBlockRange blocks(output_range.begin, output_range.end);
  std::vector<std::byte> edges;
  i64 at = output_range.begin;
  for (const std::span<const std::byte> bytes : {all.first(head), std::span<const std::byte>(eod), all.subspan(head)}) {
    const auto before = clip_to_range(output_range.begin, blocks.begin, at, bytes),
               after = clip_to_range(blocks.end, output_range.end, at, bytes),
               inside = clip_to_range(blocks.begin, blocks.end, at, bytes);
    edges.insert(edges.end(), before.begin(), before.end());
    if (!inside.empty()) output_files_[key]->write_at(std::max(at, blocks.begin), inside);
    edges.insert(edges.end(), after.begin(), after.end());
    at += std::ssize(bytes);
  }
  return edges;
}

}  // namespace mcpp

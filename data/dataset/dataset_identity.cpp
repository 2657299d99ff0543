#include "data/dataset/dataset_identity.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "data/dataset/index/index_header.h"

namespace mcpp {
namespace {

constexpr std::size_t kBlocks = 256, kBlockBytes = std::size_t{1} << 14;

std::string sampled_checksum(std::span<const std::byte> bytes) {
  if (bytes.size() <= kBlocks * kBlockBytes) return checksum_hex(bytes);
  std::vector<std::byte> sample;
  sample.reserve(kBlocks * kBlockBytes);
  const std::size_t last = bytes.size() - kBlockBytes;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    // Quotient and remainder are scaled separately so that the product cannot overflow.
    const std::size_t steps = kBlocks - 1, begin = last / steps * i + last % steps * i / steps;
    const auto block = bytes.subspan(begin, kBlockBytes);
    sample.insert(sample.end(), block.begin(), block.end());
  }
  return checksum_hex(sample);
}

}  // namespace

std::string dataset_identity(const Path& prefix) {
  const MappedFile idx(idx_path(prefix)), bin(bin_path(prefix));
  const IndexHeader header = read_index_header(idx);
  const u64 tokens = bin.bytes().size() / static_cast<u64>(token_bytes(header.type));
  return str(header.sequences, " sequences, ", header.document_entries - 1, " documents, ", tokens, " tokens, .idx ",
             sampled_checksum(idx.bytes()), ", .bin ", sampled_checksum(bin.bytes()));
}

}  // namespace mcpp

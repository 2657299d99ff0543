#include "data/dataset/index/index_cache.h"

#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "base/program/progress.h"
#include "base/strings.h"

namespace mcpp {
namespace {

// File layout: Header, u64 entries[arrays], then the payload: description padded to 4 bytes, arrays. The checksum
// covers the payload.
constexpr std::string_view kMagic{"mcppidx1", 8};

struct Header {
  char magic[8];
  u64 arrays, description_bytes;
  char checksum[32];
};

u64 padded(u64 bytes) {
  return (bytes + 3) / 4 * 4;
}

std::vector<std::byte> payload_of(std::string_view description, std::span<const std::vector<u32>> arrays) {
  u64 size = padded(description.size());
  for (const auto& array : arrays) size += array.size() * sizeof(u32);
  std::vector<std::byte> payload(size);
  std::memcpy(payload.data(), description.data(), description.size());
  u64 offset = padded(description.size());
  for (const auto& array : arrays) {
    if (!array.empty()) std::memcpy(payload.data() + offset, array.data(), array.size() * sizeof(u32));
    offset += array.size() * sizeof(u32);
  }
  return payload;
}

void store(const Path& path, std::string_view description, std::span<const std::vector<u32>> arrays) {
  const std::vector<std::byte> payload = payload_of(description, arrays);
  Header header{};
  std::memcpy(header.magic, kMagic.data(), kMagic.size());
  header.arrays = arrays.size();
  header.description_bytes = description.size();
  std::memcpy(header.checksum, checksum_hex(payload).data(), sizeof header.checksum);
  std::vector<u64> entries;
  for (const auto& array : arrays) entries.push_back(array.size());

  mcpp::create_directories(path.parent_path());
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(std::as_bytes(std::span(entries)));
  file.write(payload);
  file.commit();
}

/// Returns why the bytes are not a complete cache file of this description, or "" if they are. Fills in the size of
/// each array.
std::string find_damage(std::span<const std::byte> bytes, std::string_view description, IndexArrays::Verify verify,
                        std::vector<u64>& entries) {
  Header header{};
  if (bytes.size() < sizeof header) return "it is truncated";
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic.data(), kMagic.size()) != 0) return "it is not an index file";
  const u64 left = bytes.size() - sizeof header;
  if (header.arrays > left / sizeof(u64) || header.description_bytes > left) return "its header is damaged";
  entries.resize(header.arrays);
  if (!entries.empty()) std::memcpy(entries.data(), bytes.data() + sizeof header, entries.size() * sizeof(u64));
  u64 expected = sizeof header + entries.size() * sizeof(u64) + padded(header.description_bytes);
  for (const u64 count : entries) {
    if (count > left / sizeof(u32)) return "its header is damaged";
    expected += count * sizeof(u32);
  }
  if (expected != bytes.size()) return str("it has ", bytes.size(), " bytes instead of ", expected);
  const auto payload = bytes.subspan(sizeof header + entries.size() * sizeof(u64));
  if (verify == IndexArrays::Verify::All &&
      checksum_hex(payload) != std::string_view(header.checksum, sizeof header.checksum))
    return "its checksum is wrong";
  const std::string_view stored(reinterpret_cast<const char*>(payload.data()), header.description_bytes);
  return stored == description ? "" : "it describes a different dataset";
}

/// Returns why no file can be created at `path`, or "" if one can.
std::string find_write_error(const Path& path) {
  try {
    mcpp::create_directories(path.parent_path());
    const AtomicFile probe(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Loads the arrays from the cache file; if that fails, builds them and stores them if possible.
IndexArrays load_or_build(const Path& path, const std::string& description, const IndexBuilder& build,
                          const IndexBuildOptions& options, const Log& log) {
  std::string reason;
  try {
    if (auto arrays = IndexArrays::open(path, description, IndexArrays::Verify::All, reason)) return std::move(*arrays);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (!reason.empty()) log.warn_from_any_rank(str("the index ", path.string(), " is rebuilt: ", reason));

  // The cache is optional, so a failure to write it is only a warning.
  const auto warn = [&](const std::string& why) {
    log.warn_from_any_rank(str("keeping the data index in memory: it cannot be cached in ", path.parent_path().string(),
                               ": ", why, "; set data.data_cache_path to a folder that can be written"));
  };
  const std::string write_error = find_write_error(path);
  if (!write_error.empty()) warn(write_error);  // before the build, which may take long
  auto built = [&] {
    const WaitIndicator shown(log, str("building the index of samples ", path.filename().string()));
    return build(options);
  }();
  if (!write_error.empty()) return IndexArrays(std::move(built));
  try {
    store(path, description, built);
    if (auto arrays = IndexArrays::open(path, description, IndexArrays::Verify::All, reason)) return std::move(*arrays);
  } catch (const Error& error) {
    reason = error.what();
  }
  warn(reason);
  return IndexArrays(std::move(built));
}

/// Opens the file that the first rank of this node verified. Returns std::nullopt if there is no such file.
std::optional<IndexArrays> open_verified(const Path& path, const std::string& description, const Log& log) {
  std::string reason;
  try {
    if (auto arrays = IndexArrays::open(path, description, IndexArrays::Verify::Header, reason)) return arrays;
  } catch (const Error& error) {
    reason = error.what();
  }
  log.warn_from_any_rank(str("keeping a copy of the data index in memory: ", path.string(),
                             ", which the first rank of this node can read, cannot be read here: ",
                             reason.empty() ? "the file does not exist" : reason));
  return std::nullopt;
}

}  // namespace

std::optional<IndexArrays> IndexArrays::open(const Path& path, std::string_view description, Verify verify,
                                             std::string& reason) {
  reason.clear();
  if (!std::filesystem::exists(path)) return std::nullopt;
  IndexArrays arrays;
  arrays.file_ = MappedFile(path);
  const auto bytes = arrays.file_.bytes();
  std::vector<u64> entries;
  reason = find_damage(bytes, description, verify, entries);
  if (!reason.empty()) return std::nullopt;
  // Header, entry counts and padded description are multiples of 4 bytes, so the arrays are aligned.
  u64 offset = sizeof(Header) + entries.size() * sizeof(u64) + padded(description.size());
  for (const u64 count : entries) {
    arrays.mapped_.emplace_back(reinterpret_cast<const u32*>(bytes.data() + offset), count);
    offset += count * sizeof(u32);
  }
  return arrays;
}

void check_index_fits(const std::string& what, i64 num_elements, i64 copies, i64 memory) {
  check_input(num_elements <= memory / 4 / static_cast<i64>(sizeof(u32)) / copies, what, ": the index would take ",
              human_bytes(static_cast<double>(num_elements) * sizeof(u32)),
              copies > 1 ? str(" in the memory of each of ", copies,
                               " ranks, because it cannot be shared through data.data_cache_path: ")
                         : ", ",
              "more than a quarter of the ", human_bytes(static_cast<double>(memory)),
              " of this host; lower training.train_iters, train_samples or eval_iters, or use longer sequences");
}

Path index_cache_path(const Path& folder, std::string_view kind, std::string_view description) {
  return folder / str(kind, "-", checksum_hex(description), ".index");
}

IndexArrays cached_index(const Path& folder, std::string_view kind, const std::string& description,
                         const IndexBuilder& build, const IndexRanks& ranks, const Log& log) {
  const Path path = index_cache_path(folder, kind, description);
  std::optional<IndexArrays> arrays;
  const auto find_file = [&](const IndexBuildOptions& options) {
    if (!arrays) arrays = load_or_build(path, description, build, options, log);
    return arrays->is_mapped();
  };
  ranks.run(IndexRanks::RankScope::First, find_file);
  const bool has_file = ranks.run(IndexRanks::RankScope::FirstOfNode, find_file);
  ranks.run(IndexRanks::RankScope::All, [&](const IndexBuildOptions& options) {
    if (!arrays && has_file) arrays = open_verified(path, description, log);
    if (!arrays) arrays = IndexArrays(build(options));
    return true;
  });
  return std::move(*arrays);
}

}  // namespace mcpp

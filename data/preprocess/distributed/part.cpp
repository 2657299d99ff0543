#include "data/preprocess/distributed/part.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "data/preprocess/distributed/shared_output_file.h"

namespace mcpp {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const KeyPart& key) {
  return {{"info", Json::parse(info_to_json(key.info))},
          {"continues", key.continues},
          {"head_ends", key.head_ends},
          {"is_open", key.is_open},
          {"head_tokens", key.head_tokens},
          {"open_tokens", key.open_tokens},
          {"empty_documents", key.empty_documents}};
}

KeyPart part_of(const Json& json, const Path& file) {
  return {.info = info_from_json(json.at("info").dump(), file),
          .continues = json.at("continues"),
          .head_ends = json.at("head_ends"),
          .is_open = json.at("is_open"),
          .head_tokens = json.at("head_tokens"),
          .open_tokens = json.at("open_tokens"),
          .empty_documents = json.at("empty_documents")};
}

Json json_of(const OutputRange& output_range) {
  Json json{{"begin", output_range.begin}, {"end", output_range.end}};
  if (output_range.head_document) json["head_document"] = *output_range.head_document;
  return json;
}

OutputRange parse_output_range(const Json& json) {
  OutputRange output_range{.begin = json.at("begin"), .end = json.at("end"), .head_document = {}};
  if (json.contains("head_document")) output_range.head_document = json["head_document"].get<i64>();
  return output_range;
}

/// Consumes values from the front of a file.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const Path& file) : bytes_(bytes), file_(file) {}

  template <class T>
  std::vector<T> take(i64 count) {
    check_input(count >= 0 && count <= std::ssize(bytes_) / i64{sizeof(T)}, file_.string(), ": is not whole");
    std::vector<T> values(static_cast<std::size_t>(count));
    const std::size_t size = values.size() * sizeof(T);
    if (size > 0) std::memcpy(values.data(), bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return values;
  }
  void check_end() const { check_input(bytes_.empty(), file_.string(), ": is longer than it should be"); }

 private:
  std::span<const std::byte> bytes_;
  const Path& file_;
};

}  // namespace

std::string serialize_metadata(const WorkUnit& unit, const std::vector<std::string>& keys,
                               const PartMetadata& metadata) {
  Json json{{"unit", unit.identity()}, {"malformed_lines", metadata.malformed_lines}};
  for (std::size_t k = 0; k < keys.size(); ++k) json["keys"][keys[k]] = json_of(metadata.keys[k]);
  for (const OutputRange& output_range : metadata.output_ranges) json["places"].push_back(json_of(output_range));
  return json.dump();
}

PartMetadata parse_metadata(const WorkUnit& unit, const std::vector<std::string>& keys, const std::string& text,
                            const Path& file) {
  try {
    const Json json = Json::parse(text);
    check_input(json.at("unit") == unit.identity(), file.string(), ": is of another unit");
    PartMetadata metadata{.keys = {}, .output_ranges = {}, .malformed_lines = json.at("malformed_lines")};
    for (const std::string& key : keys) metadata.keys.push_back(part_of(json.at("keys").at(key), file));
    if (!json.contains("places")) return metadata;
    for (const Json& output_range : json["places"]) metadata.output_ranges.push_back(parse_output_range(output_range));
    check_input(metadata.output_ranges.size() == keys.size(), file.string(), ": has places of other keys");
    return metadata;
  } catch (const Json::exception& error) {
    fail(ExitCode::BadInput, file.string(), ": damaged: ", error.what());
  }
}

void write_part(const Path& path, const WorkUnit& unit, const std::vector<std::string>& keys, const PartContent& part) {
  AtomicFile file(path);
  file.write(serialize_metadata(unit, keys, part.metadata) + "\n");
  for (const auto& lengths : part.lengths) file.write(std::as_bytes(std::span(lengths)));
  for (const auto& edges : part.edges) file.write(edges);
  file.commit();
}

PartContent read_part(const Path& path, const WorkUnit& unit, const std::vector<std::string>& keys) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t end = text.find('\n');
  check_input(end != std::string_view::npos, path.string(), ": is not whole");
  PartContent part{
      .metadata = parse_metadata(unit, keys, std::string(text.substr(0, end)), path), .lengths = {}, .edges = {}};
  ByteReader rest(bytes.subspan(end + 1), path);
  for (const KeyPart& key : part.metadata.keys) part.lengths.push_back(rest.take<i32>(key.info.documents));
  for (const OutputRange& output_range : part.metadata.output_ranges) {
    const AlignedBlockRange blocks(output_range.begin, output_range.end);
    part.edges.push_back(rest.take<std::byte>(output_range.end - output_range.begin - (blocks.end - blocks.begin)));
  }
  rest.check_end();
  return part;
}

}  // namespace mcpp

#include "data/preprocess/distributed/parts_folder.h"

#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"
#include "data/preprocess/distributed/shared_output_file.h"

namespace mcpp {
namespace {

OrderedJson json_of(const KeyPart& key) {
  return {{"info", OrderedJson::parse(info_to_json(key.info))},
          {"continues", key.continues_document},
          {"head_ends", key.is_head_complete},
          {"is_open", key.is_open},
          {"head_tokens", key.head_tokens},
          {"open_tokens", key.open_tokens},
          {"empty_documents", key.empty_documents}};
}

KeyPart part_of(const OrderedJson& json, const Path& file) {
  return {.info = info_from_json(json.at("info").dump(), file),
          .continues_document = json.at("continues"),
          .is_head_complete = json.at("head_ends"),
          .is_open = json.at("is_open"),
          .head_tokens = json.at("head_tokens"),
          .open_tokens = json.at("open_tokens"),
          .empty_documents = json.at("empty_documents")};
}

OrderedJson json_of(const OutputRange& output_range) {
  OrderedJson json{{"begin", output_range.begin}, {"end", output_range.end}};
  if (output_range.head_document) json["head_document"] = *output_range.head_document;
  return json;
}

OutputRange parse_output_range(const OrderedJson& json) {
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
    check_input(count >= 0 && count <= std::ssize(bytes_) / i64{sizeof(T)}, file_.string(), ": is incomplete");
    std::vector<T> values(static_cast<std::size_t>(count));
    const std::size_t size = values.size() * sizeof(T);
    if (size > 0) std::memcpy(values.data(), bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return values;
  }
  void check_end() const { check_input(bytes_.empty(), file_.string(), ": has unexpected bytes at its end"); }

 private:
  std::span<const std::byte> bytes_;
  const Path& file_;
};

}  // namespace

std::string serialize_metadata(const WorkUnit& unit, const std::vector<std::string>& keys,
                               const PartMetadata& metadata) {
  OrderedJson json{{"unit", unit.identity()}, {"malformed_lines", metadata.malformed_lines}};
  for (std::size_t k = 0; k < keys.size(); ++k) json["keys"][keys[k]] = json_of(metadata.keys[k]);
  for (const OutputRange& output_range : metadata.output_ranges) json["places"].push_back(json_of(output_range));
  return json.dump();
}

PartMetadata parse_metadata(const WorkUnit& unit, const std::vector<std::string>& keys, const std::string& text,
                            const Path& file) {
  try {
    const OrderedJson json = OrderedJson::parse(text);
    check_input(json.at("unit") == unit.identity(), file.string(), ": belongs to a different unit");
    PartMetadata metadata{.keys = {}, .output_ranges = {}, .malformed_lines = json.at("malformed_lines")};
    for (const std::string& key : keys) metadata.keys.push_back(part_of(json.at("keys").at(key), file));
    if (!json.contains("places")) return metadata;
    for (const OrderedJson& output_range : json["places"])
      metadata.output_ranges.push_back(parse_output_range(output_range));
    check_input(metadata.output_ranges.size() == keys.size(), file.string(), ": has ranges for different keys");
    return metadata;
  } catch (const OrderedJson::exception& error) {
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
  check_input(end != std::string_view::npos, path.string(), ": is incomplete");
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

namespace {

constexpr const char* kDescription = "preprocess.json";
constexpr int kVersion = 2;  ///< format version of the folder; folders without a version had one dataset per part

std::string short_name(const WorkUnit& unit) {
  const std::string identity = unit.identity();
  return checksum_hex(identity);
}

}  // namespace

PartsFolder::PartsFolder(const PreprocessOptions& options, std::vector<std::string> keys)
    : options_(options), keys_(std::move(keys)), path_(options.output_prefix + ".parts") {}

bool PartsFolder::exists() const {
  return std::filesystem::exists(path_ / kDescription);
}

std::string PartsFolder::description(const Tokenizer& tokenizer) const {
  OrderedJson text{{"version", kVersion},
                   {"tokenizer_checksum", tokenizer.checksum()},
                   {"json_keys", keys_},
                   {"text_document", enum_name(options_.text_document)},
                   {"append_eod", options_.append_eod},
                   {"keep_empty", options_.keep_empty},
                   {"skip_malformed", options_.skip_malformed},
                   {"invalid_utf8", enum_name(options_.invalid_utf8)}};
  if (options_.has_loss_mask()) {
    text["json_content"] = enum_name(options_.json_content);
    text["chat_template_checksum"] = chat_template_checksum(options_.conversation(), tokenizer.path());
  }
  return text.dump(2) + "\n";
}

void PartsFolder::open(const Tokenizer& tokenizer) const {
  const std::string now = description(tokenizer);
  if (!exists()) {
    mcpp::create_directories(path_);
    return write_file_atomic(path_ / kDescription, now);
  }
  const std::string before = read_text_file(path_ / kDescription);
  check_input(before == now, path_.string(), ": holds parts made with a different tokenizer or different options:\n",
              before, "now:\n", now, "Use the same tokenizer and options, or remove the folder to start from scratch");
}

void PartsFolder::remove() const {
  std::filesystem::rename(path_, path_.string() + ".done");
  remove_leftovers();
}

void PartsFolder::remove_leftovers() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_.string() + ".done", ignored);
}

Path PartsFolder::tokens_path(const WorkUnit& unit, const std::string& key) const {
  return path_ / str(short_name(unit), "_", key, ".tokens");
}

Path PartsFolder::part_path(const WorkUnit& unit) const {
  return path_ / (short_name(unit) + ".part");
}

/// Checks that the token files are complete, since they could have been removed.
void PartsFolder::check_tokens(const WorkUnit& unit, const PartMetadata& metadata) const {
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    const DatasetInfo& info = metadata.keys[k].info;
    const bool has_ranges = !metadata.output_ranges.empty();
    const Path path = has_ranges ? shared_output_path(keys_[k]) : tokens_path(unit, keys_[k]);
    const i64 size = static_cast<i64>(std::filesystem::file_size(path));
    const i64 bytes = info.tokens * token_bytes(metadata.keys[k].token_type());
    if (!has_ranges) {
      check_input(size == bytes, path.string(), ": is incomplete");
      continue;
    }
    const OutputRange& output_range = metadata.output_ranges[k];
    const AlignedBlockRange blocks(output_range.begin, output_range.end);
    check_input(blocks.begin == blocks.end || size >= blocks.end, path.string(), ": ends before ", blocks.end);
  }
}

std::optional<PartMetadata> PartsFolder::read_metadata(const WorkUnit& unit) const {
  if (!std::filesystem::exists(part_path(unit))) return std::nullopt;
  try {
    PartMetadata metadata = read_part(unit).metadata;
    check_tokens(unit, metadata);
    return metadata;
  } catch (const std::filesystem::filesystem_error&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

PartContent PartsFolder::read_part(const WorkUnit& unit) const {
  return mcpp::read_part(part_path(unit), unit, keys_);
}

void PartsFolder::write_part(const WorkUnit& unit, const PartContent& part) const {
  mcpp::write_part(part_path(unit), unit, keys_, part);
}

void PartsFolder::remove_tokens(const WorkUnit& unit) const {
  std::error_code ignored;
  for (const std::string& key : keys_) std::filesystem::remove(tokens_path(unit, key), ignored);
}

std::vector<std::optional<PartMetadata>> PartsFolder::retain_parts(const std::vector<WorkUnit>& units) const {
  // Lists the folder instead of testing each path: network file systems cache negative lookups.
  std::set<Path> existing_files;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) existing_files.insert(entry.path());
  std::vector<std::optional<PartMetadata>> all_metadata;
  std::set<Path> needed_files{path_ / kDescription};
  for (const std::string& key : keys_) needed_files.insert(shared_output_path(key));
  for (const WorkUnit& unit : units) {
    const auto& metadata =
        all_metadata.emplace_back(existing_files.contains(part_path(unit)) ? read_metadata(unit) : std::nullopt);
    if (!metadata) continue;
    needed_files.insert(part_path(unit));
    if (!metadata->output_ranges.empty()) continue;
    for (const std::string& key : keys_) needed_files.insert(tokens_path(unit, key));
  }
  for (const Path& path : existing_files)
    if (!needed_files.contains(path)) std::filesystem::remove(path);
  fsync_path(path_);
  return all_metadata;
}

UnitPlacement::UnitPlacement(const PartsFolder& folder, const std::vector<WorkUnit>& units)
    : units_(units), append_eod_(folder.options().append_eod), pending_metadata_(units.size()) {
  for (const std::string& key : folder.keys())
    keys_.push_back({.prefix = folder.options().dataset_prefix(key), .end = 0, .open = {}});
}

void UnitPlacement::add(std::size_t unit, PartMetadata metadata) {
  {
    const std::lock_guard lock(mutex_);
    pending_metadata_[unit] = std::move(metadata);
    while (output_ranges_.size() < units_.size() && pending_metadata_[output_ranges_.size()])
      assign_next_range(*std::exchange(pending_metadata_[output_ranges_.size()], std::nullopt));
  }
  changed_.notify_all();
}

void UnitPlacement::assign_next_range(const PartMetadata& metadata) {
  const WorkUnit& unit = units_[output_ranges_.size()];
  std::vector<OutputRange> output_ranges;
  for (std::size_t k = 0; k < keys_.size(); ++k)
    output_ranges.push_back(next_output_range(keys_[k], unit, metadata.keys[k]));
  check_input(metadata.output_ranges.empty() || metadata.output_ranges == output_ranges, unit.identity(),
              ": is at the wrong offset; remove the folder of parts to start from scratch");
  output_ranges_.push_back(std::move(output_ranges));
}

OutputRange UnitPlacement::next_output_range(Key& key, const WorkUnit& unit, const KeyPart& part) const {
  MCPP_CHECK(part.continues_document || !key.open, unit.identity(), " does not continue the previous document");
  const i64 size = token_bytes(part.token_type());
  OutputRange output_range{.begin = key.end, .end = key.end + part.info.tokens * size, .head_document = {}};
  if (part.continues_document) key.open = key.open.value_or(0) + part.head_tokens;
  if (part.is_head_complete) {
    i64 tokens = *std::exchange(key.open, std::nullopt);
    if (tokens > 0 && append_eod_) {
      ++tokens;
      output_range.end += size;
    }
    check_input(tokens <= std::numeric_limits<i32>::max(), key.prefix,
                ": a document has more than 2147483647 tokens, which the .idx format cannot hold; split the text into "
                "several documents");
    output_range.head_document = tokens;
  }
  if (part.is_open && (part.is_head_complete || !part.continues_document)) key.open = part.open_tokens;
  key.end = output_range.end;
  return output_range;
}

std::optional<std::vector<OutputRange>> UnitPlacement::wait_for(std::size_t unit, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return unit < output_ranges_.size(); })) return std::nullopt;
  return output_ranges_[unit];
}

}  // namespace mcpp

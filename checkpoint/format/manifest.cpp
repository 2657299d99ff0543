#include "checkpoint/format/manifest.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/checksum.h"
#include "base/json.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"

namespace mcpp {
namespace {

constexpr std::string_view kFormat = "megatron_cpp checkpoint";
constexpr i64 kVersion = 1;
constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxNameLength = 1024;
constexpr DType kTypes[]{DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::I64};

OrderedJson to_json(const RunState& state) {
  OrderedJson json;
  RunState::fields(state, [&](const char* name, const auto& member) { json[name] = member; });
  json["extra"] = state.extra;
  return json;
}

OrderedJson to_json(const TensorEntry& tensor) {
  OrderedJson json{{"name", tensor.name}, {"dtype", name_of(tensor.dtype)}, {"shape", tensor.global}};
  json["shards"] = OrderedJson::array();
  for (const ShardEntry& shard : tensor.shards) {
    json["shards"].push_back({{"file", shard.file},
                              {"dataset", shard.dataset},
                              {"offset", shard.box.offset},
                              {"shape", shard.box.shape},
                              {"flat", {shard.flat_begin, shard.flat_end}},
                              {"xxh3", shard.checksum}});
  }
  return json;
}

RunState parse_state(const JsonObject& json) {
  RunState state;
  RunState::fields(state, [&]<class T>(const char* name, T& member) {
    if constexpr (std::is_same_v<T, i64>)
      member = json.integer(name);
    else
      member = json.text(name);
  });
  const JsonObject extra = json.object("extra");
  for (const auto& [key, value] : extra.json().items()) state.extra[key] = extra.text(key);
  return state;
}

const std::string& parse_checksum(const JsonObject& json) {
  const std::string& text = json.text("xxh3");
  check_input(text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos, json.source(),
              ": 'xxh3' is not 32 hexadecimal digits");
  return text;
}

/// Returns true for a plain file name, which cannot escape the checkpoint's directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

FileEntry parse_file(const JsonObject& json) {
  FileEntry file{json.text("name"), json.integer("bytes"), parse_checksum(json)};
  check_input(is_plain_name(file.name), json.source(), ": '", file.name, "' is not the name of a file in the folder");
  return file;
}

ShardEntry parse_shard(const JsonObject& json, const Shape& global) {
  ShardEntry shard;
  shard.box = {global, json.integers("offset", kMaxDimensions), json.integers("shape", kMaxDimensions)};
  const std::vector<i64> flat = json.integers("flat", 2);
  check_input(flat.size() == 2, json.source(), ": 'flat' needs a begin and an end");
  shard.flat_begin = flat[0], shard.flat_end = flat[1];
  shard.file = json.integer("file");
  shard.dataset = json.text("dataset");
  check_input(!shard.dataset.empty() && shard.dataset.size() <= 2 * kMaxNameLength &&
                  shard.dataset.find('\0') == std::string::npos,
              json.source(), ": 'dataset' is not a usable name");
  shard.checksum = parse_checksum(json);
  return shard;
}

DType parse_dtype(const JsonObject& json) {
  const std::string& name = json.text("dtype");
  const auto it = std::ranges::find(kTypes, name, [](DType t) { return name_of(t); });
  check_input(it != std::end(kTypes), json.source(), ": 'dtype' is '", name, "', which is not an element type");
  return *it;
}

TensorEntry parse_tensor(const JsonObject& json) {
  TensorEntry tensor{json.text("name"), parse_dtype(json), json.integers("shape", kMaxDimensions), {}};
  check_input(!tensor.name.empty() && tensor.name.size() <= kMaxNameLength, json.source(), ": unusable name");
  for (const Json& shard : json.array("shards")) {
    tensor.shards.push_back(parse_shard({shard, json.source() + ": " + tensor.name}, tensor.global));
  }
  return tensor;
}

/// Older checkpoints lack the key: their coverage is Full.
Coverage parse_coverage(const JsonObject& json) {
  if (!json.find("coverage")) return Coverage::Full;
  const std::string& name = json.text("coverage");
  check_input(name == name_of(Coverage::Full) || name == name_of(Coverage::Part), json.source(), ": 'coverage' is '",
              name, "'; allowed: whole, part");
  return name == name_of(Coverage::Full) ? Coverage::Full : Coverage::Part;
}

using ShardPointers = std::vector<const ShardEntry*>;

using ShardsByBox = std::map<std::pair<Shape, Shape>, ShardPointers>;  // by offset and shape

/// Returns the axis with the most distinct box offsets.
std::size_t axis_with_max_offsets(const ShardsByBox& by_box) {
  std::vector<std::set<i64>> begins(by_box.begin()->first.first.size());
  for (const auto& [box, list] : by_box) {
    for (std::size_t axis = 0; axis < begins.size(); ++axis) begins[axis].insert(box.first[axis]);
  }
  const auto max_begins = std::ranges::max_element(begins, {}, [](const auto& set) { return set.size(); });
  return static_cast<std::size_t>(max_begins - begins.begin());
}

void check_disjoint(const ShardPointers& a, const ShardPointers& b, const std::string& where) {
  if (!intersection(a[0]->box, b[0]->box)) return;
  for (const ShardEntry* x : a) {
    for (const ShardEntry* y : b) {
      check_input(overlap(*x, *y) == 0, where, ": the boxes at ", x->box.offset, " and ", y->box.offset, " overlap");
    }
  }
}

/// Sweeps along one axis, so that boxes are only compared with those that overlap on it.
void check_boxes_disjoint(const ShardsByBox& by_box, const std::string& where) {
  if (by_box.size() < 2) return;
  const std::size_t axis = axis_with_max_offsets(by_box);
  std::vector<const ShardPointers*> order;
  for (const auto& [box, list] : by_box) order.push_back(&list);
  const auto box_of = [](const ShardPointers* list) -> const Box& { return list->front()->box; };
  std::ranges::stable_sort(order, {}, [&](const ShardPointers* list) { return box_of(list).offset[axis]; });
  for (auto a = order.begin(); a != order.end(); ++a) {
    const i64 end = box_of(*a).offset[axis] + box_of(*a).shape[axis];
    for (auto b = std::next(a); b != order.end() && box_of(*b).offset[axis] < end; ++b) check_disjoint(**a, **b, where);
  }
}

/// Throws if two shards share an element. Shards of the same box, the common case, are compared in order; only
/// overlapping boxes are compared pairwise.
void check_disjoint(const TensorEntry& tensor, const std::string& where) {
  ShardsByBox by_box;
  for (const ShardEntry& shard : tensor.shards) {
    if (shard.numel() > 0) by_box[{shard.box.offset, shard.box.shape}].push_back(&shard);
  }
  for (auto& [box, list] : by_box) {
    std::ranges::sort(list, {}, [](const ShardEntry* s) { return s->flat_begin; });
    for (std::size_t i = 1; i < list.size(); ++i) {
      check_input(list[i - 1]->flat_end <= list[i]->flat_begin, where, ": element ", list[i]->flat_begin,
                  " of the box of ", box.second, " at ", box.first, " is in two shards");
    }
  }
  check_boxes_disjoint(by_box, where);
}

void check_tensor(const Manifest& manifest, const TensorEntry& tensor, const std::string& where) {
  const std::string shape_defect = find_defect({{tensor.global, Shape(tensor.global.size(), 0), tensor.global}, 0, 0});
  check_input(shape_defect.empty(), where, ": ", shape_defect);
  for (const ShardEntry& shard : tensor.shards) {
    const std::string defect = find_defect(shard);
    check_input(defect.empty(), where, ": ", defect);
    check_input(shard.box.global == tensor.global, where, ": its ranks disagree about its shape: ", tensor.global,
                " and ", shard.box.global);
    check_input(shard.file < static_cast<i64>(manifest.files.size()), where, ": file ", shard.file, " does not exist");
    const i64 bytes = manifest.files[static_cast<std::size_t>(shard.file)].bytes;
    check_input(shard.numel() <= bytes / size_of(tensor.dtype), where, ": larger than its file");
  }
  check_disjoint(tensor, where);
  i64 stored = 0;  // cannot exceed the tensor's size because shards are disjoint
  for (const ShardEntry& shard : tensor.shards) stored += shard.numel();
  check_input(stored == numel(tensor.global) || manifest.coverage == Coverage::Part, where, ": only ", stored, " of ",
              numel(tensor.global), " elements are stored in the files");
}

}  // namespace

std::string_view name_of(Coverage coverage) {
  return coverage == Coverage::Full ? "whole" : "part";
}

i64 Manifest::bytes() const {
  i64 sum = 0;
  for (const FileEntry& file : files) sum += file.bytes;
  return sum;
}

const TensorEntry* Manifest::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors, name, {}, &TensorEntry::name);
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

void validate(const Manifest& manifest, const std::string& source) {
  std::set<std::string_view> names;
  i64 bytes = 0;
  for (const FileEntry& file : manifest.files) {
    check_input(names.insert(file.name).second, source, ": the file ", file.name, " is listed twice");
    check_input(!__builtin_add_overflow(bytes, file.bytes, &bytes), source,
                ": the files are too large: 2^63 bytes or more in total");
  }
  for (std::size_t i = 1; i < manifest.tensors.size(); ++i) {
    const std::string &before = manifest.tensors[i - 1].name, &name = manifest.tensors[i].name;
    check_input(before != name, source, ": the tensor ", name, " is listed twice");
    check_input(before < name, source, ": the tensor ", name, " is not in order");
  }
  for (const TensorEntry& tensor : manifest.tensors) {
    check_tensor(manifest, tensor, str(source, ": tensor ", tensor.name));
  }
}

std::string to_json(const Manifest& manifest) {
  OrderedJson json{{"format", kFormat}, {"version", kVersion}, {"saved_at", manifest.saved_at}};
  json["coverage"] = name_of(manifest.coverage);
  json["state"] = to_json(manifest.state);
  json["files"] = OrderedJson::array();
  for (const FileEntry& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.checksum}});
  }
  json["tensors"] = OrderedJson::array();
  for (const TensorEntry& tensor : manifest.tensors) json["tensors"].push_back(to_json(tensor));
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  check_input(text.size() <= kMaxManifestBytes, source, " is too large for a manifest: ", text.size(), " bytes");
  const Json parsed = parse_json(text, source);
  const JsonObject json(parsed, source);
  check_input(json.text("format") == kFormat, source, " is not a checkpoint of this program");
  check_input(json.integer("version") == kVersion, source, " has version ", json.integer("version"),
              ", this program reads ", kVersion);
  Manifest manifest{
      .saved_at = json.text("saved_at"), .coverage = parse_coverage(json), .state = parse_state(json.object("state"))};
  for (const Json& file : json.array("files")) manifest.files.push_back(parse_file({file, source + ": file"}));
  for (const Json& tensor : json.array("tensors")) {
    manifest.tensors.push_back(parse_tensor({tensor, source + ": tensor"}));
  }
  return manifest;
}

Manifest read_manifest(const Path& directory) {
  const Path path = directory / kManifestName;
  const std::string text = read_stored_text(path);
  const std::string listed = read_stored_text(directory / kManifestChecksumName);
  const std::vector<std::string> checksums = split(listed, '\n');
  const bool is_listed = listed.ends_with('\n') && std::ranges::count(checksums, checksum_hex(text)) > 0;
  check_input(is_listed && checksums.size() <= 3, path.string(), " is damaged: its checksum differs from ",
              kManifestChecksumName);
  Manifest manifest = parse_manifest(text, path.string());
  validate(manifest, path.string());
  return manifest;
}

namespace {

/// Replaces the manifest of a checkpoint in an object store. The object with the manifest decides which checkpoint is
/// read, and while it is replaced, the other one lists the checksums of both.
void replace_manifest_object(const Path& directory, const std::string& text) {
  const Path path = directory / kManifestName, checksum_path = directory / kManifestChecksumName;
  const std::string line = checksum_hex(text) + "\n";
  const bool is_replaced = stored_file_exists(path);
  write_stored_text(checksum_path, is_replaced ? line + checksum_hex(read_stored_text(path)) + "\n" : line);
  write_stored_text(path, text);
  if (is_replaced) write_stored_text(checksum_path, line);
}

}  // namespace

void write_manifest(const Path& directory, const Manifest& manifest) {
  const std::string text = to_json(manifest);
  if (is_s3_path(directory)) return replace_manifest_object(directory, text);
  write_file_atomic(directory / kManifestChecksumName, checksum_hex(text) + "\n");
  write_file_atomic(directory / kManifestName, text);
}

}  // namespace mcpp

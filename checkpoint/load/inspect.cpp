#include "checkpoint/load/inspect.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "base/object_store/stored_file.h"
#include "base/program/progress.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"

namespace mcpp {
namespace {

bool is_checkpoint(const Path& path) {
  return stored_file_exists(path / kManifestName) || iteration_of(path.filename().string());
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

/// Returns the part of a tensor's name before the parameter: "model", "optimizer/exp_avg".
std::string kind_of(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string::npos ? std::string() : name.substr(0, slash);
}

/// Adds the comparison of n elements of type T to `difference`. Bitwise identical elements are equal, including NaNs.
template <class T>
void compare(const Tensor& a, const Tensor& b, TensorDifference& difference) {
  const T *x = a.data<T>(), *y = b.data<T>();
  for (i64 i = 0; i < a.numel(); ++i) {
    if (std::memcmp(x + i, y + i, sizeof(T)) == 0) continue;
    const double distance = std::abs(to_double(x[i]) - to_double(y[i]));
    difference.max_abs_difference = std::max(difference.max_abs_difference,
                                             std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
    ++difference.different_elements;
  }
}

/// Compares a tensor chunk by chunk, in bounded memory.
TensorDifference compare(const TensorEntry& tensor, CheckpointReader& a, CheckpointReader& b, Device& device) {
  constexpr i64 kChunk = i64{1} << 22;
  TensorDifference difference{.name = tensor.name};
  const Box box{tensor.global, Shape(tensor.global.size(), 0), tensor.global};
  const i64 all = numel(tensor.global);
  for (i64 begin = 0; begin < all; begin += kChunk) {
    const i64 end = std::min(all, begin + kChunk);
    const auto chunk = [&](CheckpointReader& reader) {
      NamedShard shard(tensor.name, box, begin, end,
                       Tensor::empty({end - begin}, tensor.dtype, device, MemoryClass::Other));
      reader.read(shard);
      return shard.data;
    };
    on_type(tensor.dtype, [&]<class T>() { compare<T>(chunk(a), chunk(b), difference); });
  }
  return difference;
}

/// Returns why two entries cannot be compared; empty if they can.
std::string mismatch(const TensorEntry& a, const TensorEntry& b) {
  if (a.global != b.global) return str("shape ", a.global, " and ", b.global);
  if (a.dtype != b.dtype) return str("type ", name_of(a.dtype), " and ", name_of(b.dtype));
  return {};
}

std::vector<std::string> differences(const RunState& a, const RunState& b) {
  constexpr std::size_t kShown = 100;
  std::map<std::string, std::string> fields_of_a;
  std::vector<std::string> differences;
  const auto compare_text = [&](const std::string& name, const std::string& x, const std::string& y) {
    if (x == y) return;
    differences.push_back(x.size() + y.size() > kShown ? name + ": differs" : str(name, ": ", x, " and ", y));
  };
  RunState::fields(a, [&](const char* name, const auto& value) { fields_of_a[name] = str(value); });
  RunState::fields(b, [&](const char* name, const auto& value) { compare_text(name, fields_of_a[name], str(value)); });
  std::map<std::string, std::string> extra_a = a.extra, extra_b = b.extra;
  extra_a.insert(b.extra.begin(), b.extra.end());
  for (const auto& [name, value] : extra_a) {
    const auto x = a.extra.find(name), y = b.extra.find(name);
    compare_text(name, x == a.extra.end() ? "absent" : x->second, y == b.extra.end() ? "absent" : y->second);
  }
  return differences;
}

/// Returns the bytes of the files in these checkpoints' manifests; checkpoints with a damaged manifest count as 0.
double bytes_in(const std::vector<Path>& directories) {
  double bytes = 0;
  for (const Path& directory : directories) {
    try {
      bytes += static_cast<double>(read_manifest(directory).bytes());
    } catch (const Error&) {
      continue;  // reported again by the verification
    }
  }
  return bytes;
}

}  // namespace

std::vector<CheckpointSummary> list_checkpoints(const Path& folder) {
  const std::vector<Path> directories = checkpoints_in(folder);
  check_input(!directories.empty(), folder.string(), " has no checkpoints");
  // Commands that use a checkpoint reject a `latest` that names no checkpoint; the list shows the existing checkpoints.
  const bool is_dangling = !latest_in(folder) && has_latest(folder);
  const Path latest = is_dangling ? Path() : checkpoints_in_order(folder).front();
  std::vector<CheckpointSummary> list;
  for (const Path& directory : directories) {
    CheckpointSummary summary{.directory = directory,
                              .iteration = *iteration_of(directory.filename().string()),
                              .is_latest = latest == directory,
                              .problems = find_problems(directory, false)};
    if (summary.problems.empty()) {
      const Manifest manifest = read_manifest(directory);
      summary.saved_at = manifest.saved_at;
      summary.bytes = manifest.bytes();
    }
    list.push_back(std::move(summary));
  }
  return list;
}

std::string to_text(const std::vector<CheckpointSummary>& list) {
  std::string text = padded("iteration", 12) + padded("saved at", 24) + padded("size", 14) + "status\n";
  for (const CheckpointSummary& checkpoint : list) {
    text += padded(str(checkpoint.iteration), 12) + padded(checkpoint.saved_at, 24) +
            padded(checkpoint.problems.empty() ? human_bytes(static_cast<double>(checkpoint.bytes)) : "", 14);
    text += checkpoint.problems.empty() ? "complete" : "damaged: " + checkpoint.problems.front();
    text += checkpoint.is_latest ? " (latest)\n" : "\n";
  }
  return text;
}

std::vector<VerifyResult> verify_checkpoints(const Path& path, const Log& log) {
  std::vector<Path> directories{path};
  if (!is_checkpoint(path)) directories = checkpoints_in(path);
  check_input(!directories.empty(), path.string(), " is neither a checkpoint nor a folder of checkpoints");
  std::vector<VerifyResult> results;
  Progress progress(log, "verifying", {.total = bytes_in(directories)});
  double done = 0;
  for (const Path& directory : directories) {
    const auto read = [&](i64 bytes) { progress.update(done += static_cast<double>(bytes)); };
    VerifyResult result{.directory = directory,
                        .problems = find_problems(directory, /*should_verify_checksums=*/true, read)};
    if (result.problems.empty()) result.bytes = read_manifest(directory).bytes();
    results.push_back(std::move(result));
  }
  return results;
}

std::string to_text(const std::vector<VerifyResult>& results) {
  std::string text;
  for (const VerifyResult& result : results) {
    text += result.directory.string();
    text += result.problems.empty() ? str(": intact, ", human_bytes(static_cast<double>(result.bytes)), " read\n")
                                    : std::string(": DAMAGED\n");
    for (const std::string& problem : result.problems) text += "  " + problem + "\n";
  }
  return text;
}

std::string describe_checkpoint(const Path& directory) {
  const Manifest manifest = read_manifest(directory);
  std::string text = str(directory.string(), "\n  ", padded("saved_at", 24), manifest.saved_at, "\n");
  const auto add = [&](const std::string& name, const std::string& value) {
    const bool is_long = value.find('\n') != std::string::npos || value.size() > 100;
    text += str("  ", padded(name, 24), is_long ? str(value.size(), " characters") : value, "\n");
  };
  RunState::fields(manifest.state, [&](const char* name, const auto& value) { add(name, str(value)); });
  for (const auto& [name, value] : manifest.state.extra) add(name, value);

  text += "files\n";
  for (const FileEntry& file : manifest.files) {
    text +=
        str("  ", padded(file.name, 32), padded(human_bytes(static_cast<double>(file.bytes)), 14), file.checksum, "\n");
  }
  std::map<std::string, i64> elements;
  text += "tensors\n";
  for (const TensorEntry& tensor : manifest.tensors) {
    elements[kind_of(tensor.name)] += numel(tensor.global);
    text +=
        str("  ", padded(tensor.name, 64), padded(std::string(name_of(tensor.dtype)), 8),
            padded(str(tensor.global), 20), tensor.shards.size(), tensor.shards.size() == 1 ? " shard\n" : " shards\n");
  }
  text += "elements\n";
  for (const auto& [kind, count] : elements) text += str("  ", padded(kind, 32), count, "\n");
  return text;
}

CheckpointDifference diff_checkpoints(const Path& path_a, const Path& path_b) {
  CheckpointReader a(path_a), b(path_b);
  CpuDevice device;
  CheckpointDifference result{.state = differences(a.state(), b.state())};
  for (const TensorEntry& tensor : a.manifest().tensors) {
    const TensorEntry* other = b.manifest().find(tensor.name);
    const std::string reason = other ? mismatch(tensor, *other) : "only in " + path_a.string();
    if (!reason.empty()) {
      result.tensors.push_back({.name = tensor.name, .reason = reason});
      continue;
    }
    ++result.compared;
    TensorDifference difference = compare(tensor, a, b, device);
    if (difference.different_elements > 0) result.tensors.push_back(std::move(difference));
  }
  for (const TensorEntry& tensor : b.manifest().tensors) {
    if (!a.has(tensor.name)) result.tensors.push_back({.name = tensor.name, .reason = "only in " + path_b.string()});
  }
  return result;
}

std::string to_text(const CheckpointDifference& difference) {
  std::string text;
  for (const std::string& line : difference.state) text += line + "\n";
  for (const TensorDifference& tensor : difference.tensors) {
    text += padded(tensor.name, 64);
    text += tensor.reason.empty()
                ? str(tensor.different_elements, " elements differ, by at most ", tensor.max_abs_difference, "\n")
                : tensor.reason + "\n";
  }
  const auto unequal = std::ranges::count_if(difference.tensors, [](const auto& t) { return t.reason.empty(); });
  return text + str(difference.compared, " tensors compared, ", unequal, " differ\n");
}

Path resolve_checkpoint(const Path& path) {
  if (is_checkpoint(path)) return path;
  const std::vector<Path> all = checkpoints_in_order(path);
  check_input(!all.empty(), path.string(), " is neither a checkpoint nor a folder of checkpoints");
  return all.front();
}

}  // namespace mcpp

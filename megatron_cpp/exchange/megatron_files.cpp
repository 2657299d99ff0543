#include "megatron_cpp/exchange/megatron_files.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr std::string_view kLayers = "decoder.layers.", kStates = "optimizer.state.", kChained = "chained_";
constexpr i64 kMaxStackedLayers = 100'000;

/// Returns the name with a separate name for a norm that is fused with the next projection, and with ".weight" or
/// ".bias" at the end.
std::string canonical_name(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> kRenames[]{
      {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
      {"self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."},
      {"self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."},
      {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."},
      {"mlp.shared_experts.gate_weight", "mlp.shared_experts.gate.weight"},
      {"linear_fc1.weight_w", "linear_fc1.gate.weight"},
      {"linear_fc1.weight_v", "linear_fc1.up.weight"},
      {"linear_fc1.bias_w", "linear_fc1.gate.bias"},
      {"linear_fc1.bias_v", "linear_fc1.up.bias"}};
  for (const auto& [stored, canonical] : kRenames)
    if (const std::size_t at = name.find(stored); at != std::string::npos) name.replace(at, stored.size(), canonical);
  return name;
}

/// Returns the state of the optimizer that begins the name, without the prefix; "" for a weight. Removes it from the
/// name.
std::string take_state(std::string& name) {
  if (name.starts_with(kChained)) {  // experts have an optimizer of their own: chained_1.optimizer.state.exp_avg...
    const std::size_t end = name.find('.');
    if (end == std::string::npos || !std::string_view(name).substr(end + 1).starts_with(kStates)) return "";
    name.erase(0, end + 1);
  }
  if (!name.starts_with(kStates)) return "";
  const std::size_t end = name.find('.', kStates.size());
  if (end == std::string::npos) return "";
  const std::string state = name.substr(kStates.size(), end - kStates.size());
  name.erase(0, end + 1);
  return state == "fp32_param" || state == "param" ? "master" : state;
}

std::string named(const std::string& name, const std::string& state) {
  return state.empty() ? name : str(kStates, name, ".", state);
}

bool begins_with_number(std::string_view text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

}  // namespace

MegatronFiles::MegatronFiles(std::unique_ptr<TensorFiles> files) : files_(std::move(files)) {
  for (const FileTensor& tensor : files_->tensors()) add(tensor);
  std::ranges::sort(tensors_, {}, &FileTensor::name);
}

void MegatronFiles::add(const FileTensor& tensor) {
  std::string name = tensor.name;
  const std::string state = take_state(name);
  const auto insert = [&](const std::string& plain, const Shape& shape, i64 layer) {
    const std::string full = named(canonical_name(plain), state);
    check_input(origins_.emplace(full, Origin{tensor.name, layer}).second, source(), ": two tensors are ", full);
    tensors_.push_back({full, tensor.type, shape});
  };
  const bool is_stacked = name.starts_with(kLayers) && !begins_with_number(name.substr(kLayers.size()));
  if (!is_stacked) return insert(name, tensor.shape, -1);
  check_input(!tensor.shape.empty() && tensor.shape[0] <= kMaxStackedLayers, source(), ": ", tensor.name, " has shape ",
              tensor.shape, " instead of one with the layers as its first axis");
  const Shape shape(tensor.shape.begin() + 1, tensor.shape.end());
  for (i64 layer = 0; layer < tensor.shape[0]; ++layer)
    insert(str(kLayers, layer, ".", name.substr(kLayers.size())), shape, layer);
}

Tensor MegatronFiles::read(std::string_view name, const Box& part, DType dtype, Device& device) {
  at(name);  // throws if it is absent
  const Origin& origin = origins_.find(name)->second;
  if (origin.layer < 0) return files_->read(origin.name, part, dtype, device);
  Box stacked = part;
  stacked.global.insert(stacked.global.begin(), files_->at(origin.name).shape[0]);
  stacked.offset.insert(stacked.offset.begin(), origin.layer);
  stacked.shape.insert(stacked.shape.begin(), 1);
  return files_->read(origin.name, stacked, dtype, device).view(part.shape);
}

namespace {

constexpr std::string_view kRankPrefix = "mp_rank_", kRankFile = "model_optim_rng.pt";

/// Returns the path of the file of a rank.
Path rank_file(const Path& folder, int tp, int pp, bool has_stages) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), has_stages ? "mp_rank_%02d_%03d" : "mp_rank_%02d", tp, pp);
  return folder / name.data() / kRankFile;
}

/// Returns the axis along which Megatron Core shards a parameter over tensor-parallel ranks; -1 for replicated ones.
int sharded_axis(std::string_view name) {
  for (const std::string_view column : {"word_embeddings.weight", "output_layer.weight", "linear_qkv.weight",
                                        "linear_qkv.bias", "linear_fc1.weight", "linear_fc1.bias"})
    if (name.ends_with(column)) return 0;
  return name.ends_with("linear_proj.weight") || name.ends_with("linear_fc2.weight") ? 1 : -1;
}

/// Copies a [rows, columns] block to another one with longer rows.
void copy_block(const Tensor& from, i64 from_row, Tensor& to, i64 to_row, i64 to_column, i64 rows) {
  const i64 size = size_of(from.dtype()), columns = from.numel() / from.dim(0), to_columns = to.numel() / to.dim(0);
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.raw());
  for (i64 row = 0; row < rows; ++row)
    std::memcpy(target + ((to_row + row) * to_columns + to_column) * size, source + (from_row + row) * columns * size,
                static_cast<std::size_t>(columns * size));
}

}  // namespace

bool MegatronRanks::is_in(const Path& folder) {
  return std::filesystem::exists(rank_file(folder, 0, 0, false)) ||
         std::filesystem::exists(rank_file(folder, 0, 0, true));
}

MegatronRanks::MegatronRanks(const Path& folder) : folder_(folder) {
  const bool has_stages = !std::filesystem::exists(rank_file(folder, 0, 0, false));
  i64 folders = 0, opened = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    folders += entry.path().filename().string().starts_with(kRankPrefix);
  for (int pp = 0; std::filesystem::exists(rank_file(folder, 0, pp, has_stages)); ++pp) {
    auto& ranks = stages_.emplace_back();
    for (int tp = 0; std::filesystem::exists(rank_file(folder, tp, pp, has_stages)); ++tp)
      ranks.push_back(std::make_unique<TorchFiles>(std::vector{rank_file(folder, tp, pp, has_stages)}, true));
    opened += static_cast<i64>(ranks.size());
    check_input(ranks.size() == stages_[0].size(), folder.string(), ": pipeline rank ", pp, " has ", ranks.size(),
                " tensor-parallel ranks, but pipeline rank 0 has ", stages_[0].size());
    if (!has_stages) break;
  }
  check_input(folders == opened, folder.string(), ": has ", folders, " folders of ranks, but the ranks from 0 on are ",
              opened, "; experts and gaps are not supported");
  if (const PickleValue* arguments = first_file().root().find("args"))
    if (const PickleValue* swiglu = arguments->find("swiglu")) is_gated_ = swiglu->integer != 0;
  i64 layers = 0;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const i64 first = layers;
    for (const FileTensor& tensor : stages_[stage][0]->tensors()) {
      if (!tensor.name.starts_with(kLayers)) continue;
      const std::string_view rest = std::string_view(tensor.name).substr(kLayers.size());
      const auto layer = parse_number<i64>(rest.substr(0, rest.find('.')));
      check_input(layer && *layer >= 0 && *layer < kMaxStackedLayers, folder.string(), ": ", tensor.name,
                  " has no number of a layer");
      layers = std::max(layers, first + *layer + 1);
    }
    add_stage(stage, first);
  }
  std::ranges::sort(tensors_, {}, &FileTensor::name);
}

void MegatronRanks::add_stage(std::size_t stage, i64 first_layer) {
  for (const FileTensor& tensor : stages_[stage][0]->tensors()) {
    std::string name = tensor.name;
    if (name.starts_with(kLayers)) {
      const std::size_t dot = name.find('.', kLayers.size());
      const i64 layer = *parse_number<i64>(std::string_view(name).substr(kLayers.size(), dot - kLayers.size()));
      name = str(kLayers, first_layer + layer, dot == std::string::npos ? "" : name.substr(dot));
    }
    // With tied embeddings, the last pipeline rank has a copy of the embeddings.
    const bool is_copy = stage > 0 && name == "output_layer.weight" && origins_.contains("output_layer.weight");
    if (!is_copy) add(stage, tensor, canonical_name(name));
  }
}

void MegatronRanks::add(std::size_t stage, const FileTensor& tensor, const std::string& global_name) {
  Origin origin{.stage = stage, .name = tensor.name, .axis = sharded_axis(global_name)};
  origin.is_interleaved = is_gated_ && origin.axis == 0 && global_name.find("linear_fc1.") != std::string::npos;
  Shape shape = tensor.shape;
  if (origin.axis >= static_cast<int>(shape.size())) origin.axis = -1;
  for (std::size_t tp = 1; tp < stages_[stage].size(); ++tp) {
    const FileTensor& other = stages_[stage][tp]->at(tensor.name);
    check_input(other.shape == tensor.shape && other.type == tensor.type, stages_[stage][tp]->source(), ": ",
                tensor.name, " has shape ", other.shape, ", but ", tensor.shape, " on rank 0");
  }
  if (origin.axis >= 0) shape[static_cast<std::size_t>(origin.axis)] *= static_cast<i64>(stages_[stage].size());
  check_input(origins_.emplace(global_name, origin).second, source(), ": two ranks have ", global_name);
  tensors_.push_back({global_name, tensor.type, shape});
}

Tensor MegatronRanks::read(std::string_view name, const Box& part, DType dtype, Device& device) {
  const FileTensor& tensor = at(name);
  const Origin& origin = origins_.find(name)->second;
  const auto& ranks = stages_[origin.stage];
  if (origin.axis < 0) return ranks[0]->read(origin.name, part, dtype, device);
  Tensor full = Tensor::empty(tensor.shape, dtype, device, MemoryClass::Other);
  for (std::size_t tp = 0; tp < ranks.size(); ++tp) {
    const Tensor shard = ranks[tp]->read_all(origin.name, dtype, device);
    const auto rank = static_cast<i64>(tp);
    const i64 rows = shard.dim(0);
    if (origin.axis == 1) {
      copy_block(shard, 0, full, 0, rank * shard.dim(1), rows);
    } else if (origin.is_interleaved) {
      check_input(rows % 2 == 0, ranks[tp]->source(), ": ", origin.name, " has ", rows,
                  " rows, which are not as many gates as up projections");
      copy_block(shard, 0, full, rank * (rows / 2), 0, rows / 2);
      copy_block(shard, rows / 2, full, full.dim(0) / 2 + rank * (rows / 2), 0, rows / 2);
    } else {
      copy_block(shard, 0, full, rank * rows, 0, rows);
    }
  }
  if (part.shape == tensor.shape) return full;
  Tensor result = Tensor::empty(part.shape, dtype, device, MemoryClass::Other);
  copy_box(full_box(tensor.shape), static_cast<const std::byte*>(full.raw()), part,
           static_cast<std::byte*>(result.raw()), size_of(dtype));
  return result;
}

std::optional<double> MegatronRanks::number(std::string_view name) {
  return stages_[0][0]->number(name);
}

}  // namespace mcpp

#include "checkpoint/load/torch_files.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::string_view kCompiled = "_orig_mod.", kWrapped = "module.";
constexpr std::array<std::string_view, 4> kModelKeys{"model", "state_dict", "model_state_dict", "module"};
constexpr std::array<std::string_view, 3> kOptimizerKeys{"optimizer", "optimizer_state_dict", "optim"};

/// Removes prefixes of modules that wrap a model.
std::string plain_name(std::string name) {
  for (std::size_t at = name.find(kCompiled); at != std::string::npos; at = name.find(kCompiled, at))
    name.erase(at, kCompiled.size());
  if (name.starts_with(kWrapped)) name.erase(0, kWrapped.size());
  return name;
}

/// Returns the key of a dict as text; std::nullopt for keys that are neither text nor an integer.
std::optional<std::string> key_text(const PickleValue& key) {
  if (key.is(PickleKind::Text)) return std::string(key.text);
  if (key.is(PickleKind::Integer)) return str(key.integer);
  return std::nullopt;
}

/// Returns the key among `keys` that the dict has with a dict as its value; "" if it has none.
template <class Keys>
std::string_view find_dict(const PickleValue& dict, const Keys& keys) {
  for (const std::string_view key : keys) {
    const PickleValue* value = dict.find(key);
    if (value && value->is(PickleKind::Dict)) return key;
  }
  return "";
}

}  // namespace

TorchFiles::TorchFiles(const std::vector<Path>& files, bool ignores_optimizer) : source_(files.front().string()) {
  files_.reserve(files.size());
  content_.reserve(files.size());
  for (const Path& path : files) {
    const MappedFile& content = content_.emplace_back(path);
    files_.emplace_back(content.bytes(), path.string());
  }
  for (const TorchFile& file : files_) add_file(file, ignores_optimizer);
  std::ranges::sort(tensors_, {}, &FileTensor::name);
}

void TorchFiles::add_file(const TorchFile& file, bool ignores_optimizer) {
  const PickleValue& root = file.root();
  check_input(root.is(PickleKind::Dict), file.source(), ": contains ", name_of(root.kind),
              " instead of a dict of tensors (a state dict)");
  const std::string_view model_key = find_dict(root, kModelKeys), optimizer_key = find_dict(root, kOptimizerKeys);
  const PickleValue* model = model_key.empty() ? nullptr : root.find(model_key);
  if (model) add_dict(file, *model, "", 0);
  visited_.insert(&root);
  for (std::size_t i = 0; i < root.items.size(); i += 2) {
    const std::optional<std::string> key = key_text(*root.items[i]);
    if (key && *key != model_key && *key != optimizer_key) add_value(file, *root.items[i + 1], *key, 0);
  }
  if (!optimizer_key.empty() && !ignores_optimizer) add_optimizer(file, *root.find(optimizer_key), model);
}

void TorchFiles::add_dict(const TorchFile& file, const PickleValue& dict, const std::string& prefix, int depth) {
  check_input(depth < kMaxDepth, file.source(), ": ", prefix, " is nested deeper than ", kMaxDepth, " levels");
  // A dict that occurs many times would let a small file describe any number of tensors.
  check_input(visited_.insert(&dict).second, file.source(), ": ", prefix, " is a dict that also has another name");
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const std::optional<std::string> key = key_text(*dict.items[i]);
    if (key) add_value(file, *dict.items[i + 1], prefix.empty() ? *key : prefix + "." + *key, depth + 1);
  }
}

void TorchFiles::add_value(const TorchFile& file, const PickleValue& value, std::string name, int depth) {
  name = plain_name(std::move(name));
  if (value.is(PickleKind::Dict)) return add_dict(file, value, name, depth);
  std::optional<TorchTensor> tensor = file.tensor(value, name);
  if (!tensor) {
    others_[name] = value.is(PickleKind::Integer) ? std::optional(static_cast<double>(value.integer))
                    : value.is(PickleKind::Float) ? std::optional(value.number)
                                                  : std::nullopt;
    return;
  }
  tensors_.push_back({name, tensor->type->type, tensor->shape});
  const bool is_new = values_.emplace(name, std::move(*tensor)).second;
  check_input(is_new, file.source(), ": the tensor ", name, " is stored twice");
}

std::vector<std::string> TorchFiles::parameter_names(const TorchFile& file, const PickleValue& optimizer,
                                                     const PickleValue* model) const {
  const PickleValue* groups = optimizer.find("param_groups");
  const char* advice =
      "; save the state with torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, which names the "
      "parameters, or import with --weights_only";
  check_input(groups && groups->is(PickleKind::List) && groups->items.size() == 1, file.source(),
              ": the optimizer numbers its parameters and does not have exactly one group", advice);
  const PickleValue* parameters = groups->items[0]->find("params");
  check_input(model && parameters && parameters->is(PickleKind::List), file.source(),
              ": the optimizer has no list of parameters, or the file has no model", advice);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model->items.size(); i += 2) {
    const std::optional<std::string> key = key_text(*model->items[i]);
    if (key && file.tensor(*model->items[i + 1], *key)) names.push_back(plain_name(*key));
  }
  check_input(names.size() == parameters->items.size(), file.source(), ": the optimizer has ", parameters->items.size(),
              " parameters, but the model has ", names.size(), " tensors", advice);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const PickleValue& number = *parameters->items[i];
    check_input(number.is(PickleKind::Integer) && number.integer == static_cast<i64>(i), file.source(),
                ": the optimizer does not have the order of parameters of the model", advice);
  }
  return names;
}

void TorchFiles::add_optimizer(const TorchFile& file, const PickleValue& optimizer, const PickleValue* model) {
  const PickleValue* state = optimizer.find("state");
  const bool is_numbered =
      state && state->is(PickleKind::Dict) && !state->items.empty() && state->items[0]->is(PickleKind::Integer);
  if (!is_numbered) return add_dict(file, optimizer, "optimizer", 0);
  const std::vector<std::string> names = parameter_names(file, optimizer, model);
  for (std::size_t i = 0; i < state->items.size(); i += 2) {
    const PickleValue &key = *state->items[i], &value = *state->items[i + 1];
    check_input(key.is(PickleKind::Integer) && key.integer >= 0 && key.integer < static_cast<i64>(names.size()),
                file.source(), ": the optimizer has the state of a parameter that is not in its group");
    if (value.is(PickleKind::Dict))
      add_dict(file, value, "optimizer.state." + names[static_cast<std::size_t>(key.integer)], 0);
  }
}

Tensor TorchFiles::read(std::string_view name, const Box& part, DType dtype, Device& device) {
  const FileTensor& tensor = at(name);
  const TorchTensor& stored = values_.find(name)->second;
  const i64 size = stored.type->size;
  std::vector<std::byte> all(static_cast<std::size_t>(stored.numel() * size)), bytes;
  stored.copy(all.data());
  Tensor result = Tensor::empty(part.shape, dtype, device, MemoryClass::Other);
  const bool is_complete = part.shape == stored.shape;
  if (!is_complete) bytes.resize(static_cast<std::size_t>(result.numel() * size));
  if (!is_complete) copy_box(full_box(stored.shape), all.data(), part, bytes.data(), size);
  convert_elements(is_complete ? all : bytes, tensor.type, result, str(source_, ": ", name));
  return result;
}

bool TorchFiles::contains(std::string_view name) const {
  return values_.contains(name) || others_.contains(name);
}

std::optional<double> TorchFiles::number(std::string_view name) {
  if (const auto tensor = values_.find(name); tensor != values_.end()) return tensor->second.number();
  const auto other = others_.find(name);
  return other == others_.end() ? std::nullopt : other->second;
}

}  // namespace mcpp

#include "megatron_cpp/setup/datasets/vocabulary.h"

#include <algorithm>
#include <optional>

#include "base/checksum.h"
#include "base/number_format.h"
#include "data/dataset/batch.h"
#include "data/dataset/dataset_info.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"

namespace mcpp {
namespace {

/// Returns the prefixes of all data paths, in which each may be preceded by its weight.
std::vector<std::string> prefixes(const DataConfig& data) {
  std::vector<std::string> found;
  for (const auto* list : {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path}) {
    for (const std::string& entry : *list) {
      if (std::filesystem::exists(entry + ".idx")) found.push_back(entry);
    }
  }
  return found;
}

/// Fills in data.eod_token if it is unset and document boundaries depend on it.
void resolve_eod(DataConfig& data, i64 vocab_size, const Tokenizer* tokenizer, const Log& log) {
  if (!data.has_document_starts() && !data.eod_mask_loss) return;
  if (data.eod_token < 0 && tokenizer) data.eod_token = tokenizer->eod();
  for (const std::string& prefix : prefixes(data)) {
    const std::optional<DatasetInfo> info = read_dataset_info(prefix);
    if (!info) continue;
    check_input(info->append_eod, prefix, ".json: the dataset was made without an <eod> after each document; ",
                "data.reset_position_ids, data.reset_attention_mask and data.eod_mask_loss need one");
    if (data.eod_token < 0) data.eod_token = info->eod;
    check_input(info->eod == data.eod_token, prefix, ".json: documents end with token ", info->eod,
                ", data.eod_token is ", data.eod_token);
  }
  check_input(data.eod_token >= 0,
              "data.eod_token: is missing; set it or data.tokenizer_model; data.reset_position_ids, "
              "data.reset_attention_mask and data.eod_mask_loss read it");
  check_input(data.eod_token < vocab_size, "data.eod_token: ", data.eod_token, " is outside the vocabulary of ",
              vocab_size);
  for (const std::string& prefix : prefixes(data)) {
    const double ended = check_ends_documents(IndexedDataset(prefix), data.eod_token);
    if (ended < 0.5) {
      log.warn(str(prefix, ".bin: only ", fixed(100 * ended, 0),
                   " % of the documents end with data.eod_token = ", data.eod_token,
                   "; if that is not the token that ends documents, documents are split at the wrong positions"));
    }
  }
}

void check_dataset(const std::string& prefix, const Config& config, const Tokenizer* tokenizer) {
  const std::optional<DatasetInfo> info = read_dataset_info(prefix);
  if (!info) return;
  check_input(info->vocab_size <= config.model.vocab_size, prefix, ".json: the dataset was made with a vocabulary of ",
              info->vocab_size, ", model.vocab_size is ", config.model.vocab_size);
  check_input(!tokenizer || tokenizer->checksum() == info->tokenizer_checksum, prefix,
              ".json: the dataset was made with a different tokenizer than ", config.data.tokenizer_model,
              "; preprocess the text again with this one, or set data.tokenizer_model to the one it was made with");
}

/// Checks that all datasets of a run use the same tokenizer, even if data.tokenizer_model is not set.
void check_same_tokenizer(const std::vector<std::string>& prefixes) {
  std::string first, checksum;
  for (const std::string& prefix : prefixes) {
    const std::optional<DatasetInfo> info = read_dataset_info(prefix);
    if (!info) continue;
    check_input(first.empty() || info->tokenizer_checksum == checksum, prefix,
                ".json: the dataset was made with a different tokenizer than ", first,
                "; all datasets of a run must use the same tokenizer");
    first = prefix, checksum = info->tokenizer_checksum;
  }
}

/// Warns about unused embedding rows. A few are padding; many are probably a mistake, which costs memory and time.
void warn_of_unused_rows(const ModelConfig& model, i64 pieces, const Log& log) {
  const i64 unused = model.vocab_size - pieces;
  if (unused <= std::max(model.make_vocab_size_divisible_by, pieces / 10)) return;
  log.warn(str("model.vocab_size: ", model.vocab_size, " is far above the ", pieces,
               " pieces of data.tokenizer_model: ", unused, " tokens never occur; 0 uses the size of the tokenizer"));
}

}  // namespace

void resolve_vocabulary(Config& config, const Log& log) {
  std::optional<Tokenizer> tokenizer;
  if (!config.data.tokenizer_model.empty()) tokenizer.emplace(config.data.tokenizer_model);
  check_input(tokenizer || config.model.vocab_size > 0, "model.vocab_size: is missing; set it or data.tokenizer_model");
  if (tokenizer && config.model.vocab_size == 0) config.model.vocab_size = tokenizer->vocab_size();
  check_input(!tokenizer || config.model.vocab_size >= tokenizer->vocab_size(),
              "model.vocab_size: ", config.model.vocab_size, " is below the ", tokenizer ? tokenizer->vocab_size() : 0,
              " pieces of ", config.data.tokenizer_model);
  warn_of_unused_rows(config.model, tokenizer ? tokenizer->vocab_size() : config.model.vocab_size, log);
  const std::vector<std::string> datasets = prefixes(config.data);
  for (const std::string& prefix : datasets) check_dataset(prefix, config, tokenizer ? &*tokenizer : nullptr);
  check_same_tokenizer(datasets);
  resolve_eod(config.data, config.model.vocab_size, tokenizer ? &*tokenizer : nullptr, log);
}

TokenizerSource tokenizer_source(const DataConfig& data) {
  if (const std::string& path = data.tokenizer_model; !path.empty()) {
    const std::string content = read_tokenizer_file(path);
    return {.file = path, .checksum = checksum_hex(content)};
  }
  for (const std::string& prefix : prefixes(data)) {
    if (const auto info = read_dataset_info(prefix); info && !info->tokenizer_checksum.empty())
      return {.file = info_path(prefix).string(), .checksum = info->tokenizer_checksum};
  }
  return {};
}

Tokenizer open_tokenizer(const Path& path, const std::string& trained_with, const ModelConfig& model) {
  Tokenizer tokenizer(path);
  check_input(trained_with.empty() || tokenizer.checksum() == trained_with, path.string(),
              ": is not the tokenizer that this model was trained with (checksum ", tokenizer.checksum(),
              ", trained with ", trained_with, "); pass that one as --tokenizer_model");
  check_input(tokenizer.vocab_size() <= model.vocab_size, path.string(), ": has ", tokenizer.vocab_size(),
              " pieces, the model only ", model.vocab_size);
  return tokenizer;
}

void check_data(const Config& config, const World& world, const Log& log) {
  if (!config.data.has_data()) {
    log.info("data: no datasets (data.data_path is not set)");
    return;
  }
  const Datasets datasets = dataset_provider(config, config.training_end().samples,
                                             SharedIndexRanks(world.ranks, world.ranks_of_node()), log);
  std::string text = "data:";
  const auto add = [&](const std::string& name, const Dataset* dataset) {
    text += str("\n  ", name, "  ", dataset ? str(dataset->size(), " samples") : std::string("none"));
  };
  add("train     ", datasets.train.get());
  if (datasets.validation.empty()) add("validation", nullptr);
  for (const ValidationSet& set : datasets.validation)
    add(set.name.empty() ? "validation" : "validation " + set.name, set.dataset.get());
  add("test      ", datasets.test.get());
  log.info(text);
}

}  // namespace mcpp

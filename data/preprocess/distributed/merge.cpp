#include "data/preprocess/distributed/merge.h"

#include <optional>

#include "base/check.h"
#include "base/object_store/stored_file.h"
#include "base/strings.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/loss_mask.h"
#include "data/preprocess/indexed_writer.h"

namespace mcpp {
namespace {

void check_inputs(const std::vector<std::string>& inputs, const std::string& output) {
  check_input(inputs.size() >= 2, "data merge: needs at least two datasets");
  check_input(!output.empty(), "data merge: output is empty");
  for (const std::string& input : inputs) {
    std::error_code unknown;
    check_input(!std::filesystem::equivalent(bin_path(input), bin_path(output), unknown) || unknown, output,
                ": is one of the datasets to merge; choose a different name for the output");
  }
}

/// Checks that both datasets were made with the same options, if their .json files record them.
void check_compatible(const std::string& first, const std::string& other) {
  const std::optional<DatasetInfo> a = read_dataset_info(first), b = read_dataset_info(other);
  if (!a || !b) return;
  check_input(a->tokenizer_checksum == b->tokenizer_checksum && a->vocab_size == b->vocab_size, other,
              ".json: the dataset was made with a different tokenizer (checksum ", b->tokenizer_checksum, ") than ",
              first, " (", a->tokenizer_checksum, ")");
  check_input(a->append_eod == b->append_eod, other, ".json: was made ", b->append_eod ? "with" : "without",
              " an <eod> after each document, ", first, a->append_eod ? " with one" : " without");
  check_input(a->has_loss_mask() == b->has_loss_mask(), other, ".json: has ", b->has_loss_mask() ? "a" : "no",
              " loss mask, ", first, a->has_loss_mask() ? " has one" : " has none",
              "; blend the datasets with data.data_path instead");
}

void add_index(const IndexedDataset& dataset, IndexContent& index) {
  for (i64 sequence = 0; sequence < dataset.num_sequences(); ++sequence)
    index.lengths.push_back(static_cast<i32>(dataset.length(sequence)));
  for (i64 document = 0; document < dataset.num_documents(); ++document)
    index.sequences_in_document.push_back(
        static_cast<i32>(dataset.document_begin(document + 1) - dataset.document_begin(document)));
}

/// Returns the summed metadata, or std::nullopt if one of the datasets has no .json file.
std::optional<DatasetInfo> merge_infos(const std::vector<std::string>& inputs) {
  std::optional<DatasetInfo> merged;
  for (const std::string& input : inputs) {
    const std::optional<DatasetInfo> info = read_dataset_info(input);
    if (!info) return std::nullopt;
    if (!merged) {
      merged = info;
      continue;
    }
    merged->documents += info->documents;
    merged->tokens += info->tokens;
    merged->source_bytes += info->source_bytes;
    merged->source_words += info->source_words;
    if (merged->has_loss_mask()) merged->targets += info->targets;
  }
  return merged;
}

/// Returns the documents of all inputs. Throws BadInput if the datasets do not fit together.
IndexContent joined_index(const std::vector<std::string>& inputs) {
  IndexContent index;
  for (const std::string& input : inputs) {
    const IndexedDataset dataset(input);
    if (input == inputs[0]) index.type = dataset.token_type();
    check_input(dataset.token_type() == index.type, input, ".idx: has tokens of type ",
                token_type_name(dataset.token_type()), ", ", inputs[0], " of type ", token_type_name(index.type));
    check_compatible(inputs[0], input);
    if (has_loss_mask(input)) check_loss_mask(dataset, IndexedDataset(loss_mask_prefix(input)));
    add_index(dataset, index);
  }
  return index;
}

void join_tokens(const std::vector<std::string>& inputs, const IndexContent& index, const Path& output) {
  AtomicFile bin(bin_path(output));
  for (const std::string& input : inputs) {
    const MappedFile tokens(local_copy(bin_path(input)));
    bin.write(tokens.bytes());
  }
  publish_dataset(output, index, [&] { bin.commit(); });
}

/// Joins the loss masks of the inputs.
void join_loss_masks(const std::vector<std::string>& inputs, const Path& output) {
  std::vector<std::string> masks;
  for (const std::string& input : inputs) masks.push_back(loss_mask_prefix(input).string());
  const Path prefix = loss_mask_prefix(output);
  const std::optional<DatasetInfo> info = merge_infos(masks);
  if (info) write_dataset_info(prefix, *info);
  join_tokens(masks, joined_index(masks), prefix);
}

}  // namespace

PreprocessOutput merge_datasets(const std::vector<std::string>& inputs, const std::string& output, const Log& log) {
  check_inputs(inputs, output);
  const IndexContent index = joined_index(inputs);
  const Path prefix = output;
  if (prefix.has_parent_path()) mcpp::create_directories(prefix.parent_path());
  const std::optional<DatasetInfo> info = merge_infos(inputs);
  if (!info) log.warn(str("some datasets have no .json file; none is written for ", output));
  log.progress(str("joining ", inputs.size(), " datasets"));
  retract_dataset(prefix);
  if (info && info->has_loss_mask()) join_loss_masks(inputs, prefix);
  std::error_code ignored;
  std::filesystem::remove(info_path(prefix), ignored);  // a stale one would describe other tokens
  if (info) write_dataset_info(prefix, *info);
  join_tokens(inputs, index, prefix);
  PreprocessOutput result{.prefix = output, .info = info.value_or(DatasetInfo{})};
  result.info.documents = static_cast<i64>(index.sequences_in_document.size());
  result.info.tokens = 0;
  for (const i32 length : index.lengths) result.info.tokens += length;
  return result;
}

}  // namespace mcpp

#include "data/preprocess/distributed/part_assembler.h"

#include <chrono>

#include "base/check.h"

namespace mcpp {

KeyAssembler::KeyAssembler(const PartsFolder& folder, std::size_t key)
    : folder_(folder),
      key_(key),
      prefix_(folder.options().dataset_prefix(folder.keys()[key])),
      is_loss_mask_(folder.options().is_loss_mask(folder.keys()[key])),
      keep_empty_(folder.options().keep_empty),
      tokens_(folder.shared_output_path(folder.keys()[key])) {}

void KeyAssembler::add(const PartContent& part) {
  const KeyPart& key = part.metadata.keys[key_];
  const DatasetInfo total = info_;
  info_ = key.info;
  info_.source_bytes += total.source_bytes;
  info_.source_words += total.source_words;
  if (total.has_loss_mask()) info_.targets += total.targets;
  index_.type = key.token_type();

  const OutputRange& output_range = part.metadata.output_ranges[key_];
  const AlignedBlockRange blocks(output_range.begin, output_range.end);
  const std::span<const std::byte> edges = part.edges[key_];
  const auto before = static_cast<std::size_t>(blocks.begin - output_range.begin);
  if (before > 0) tokens_.write_at(output_range.begin, edges.first(before));
  if (before < edges.size()) tokens_.write_at(blocks.end, edges.subspan(before));
  size_ = output_range.end;

  empty_documents_ += key.empty_documents;
  if (output_range.head_document == 0) ++empty_documents_;
  if (output_range.head_document) add_document(*output_range.head_document);
  for (const i32 tokens : part.lengths[key_]) add_document(tokens);
}

void KeyAssembler::add_document(i64 tokens) {
  if (tokens > 0) index_.lengths.push_back(static_cast<i32>(tokens));
  if (tokens > 0 || keep_empty_) index_.sequences_in_document.push_back(tokens > 0 ? 1 : 0);
}

void KeyAssembler::finish() {
  check_has_content(folder_.options(), folder_.keys()[key_], size_ / token_bytes(index_.type), info_);
  tokens_.truncate(size_);  // an earlier run may have written a longer file
  tokens_.sync();
}

PreprocessOutput KeyAssembler::publish() const {
  PreprocessOutput output{.prefix = prefix_, .info = info_, .is_loss_mask = is_loss_mask_};
  output.info.documents = std::ssize(index_.sequences_in_document);
  output.info.tokens = size_ / token_bytes(index_.type);
  const Path bin = bin_path(prefix_);
  retract_dataset(prefix_);
  write_dataset_info(prefix_, output.info);
  publish_dataset(prefix_, index_, [&] {
    std::filesystem::rename(tokens_.path(), bin);
    fsync_path(bin.has_parent_path() ? bin.parent_path() : Path("."));
  });
  return output;
}

PartAssembler::PartAssembler(const PartsFolder& folder, const std::vector<WorkUnit>& units)
    : folder_(folder), units_(units), has_part_(units.size()) {
  for (std::size_t key = 0; key < folder.keys().size(); ++key)
    keys_.push_back(std::make_unique<KeyAssembler>(folder, key));
}

void PartAssembler::add(std::size_t unit) {
  has_part_[unit] = true;
  for (; num_started_ < units_.size() && has_part_[num_started_]; ++num_started_)
    assembled_.push_back(thread_.submit([this, next = num_started_] { assemble(next); }));
}

void PartAssembler::assemble(std::size_t unit) {
  const PartContent part = folder_.read_part(units_[unit]);
  for (const auto& key : keys_) key->add(part);
  malformed_lines_ += part.metadata.malformed_lines;
}

void PartAssembler::check() {
  const auto is_done = [](const std::shared_future<void>& unit) {
    return unit.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  for (; !assembled_.empty() && is_done(assembled_.front()); assembled_.pop_front()) assembled_.front().get();
}

void PartAssembler::finish() {
  for (; !assembled_.empty(); assembled_.pop_front()) assembled_.front().get();
  for (const auto& key : keys_) key->finish();
}

std::vector<PreprocessOutput> PartAssembler::publish() const {
  std::vector<PreprocessOutput> outputs;
  for (const std::string& key : folder_.keys())  // a loss mask and its tokens appear together
    retract_dataset(folder_.options().dataset_prefix(key));
  for (const auto& key : keys_) outputs.push_back(key->publish());
  return outputs;
}

i64 PartAssembler::empty_documents() const {
  i64 documents = 0;
  for (const auto& key : keys_) documents += key->empty_documents();
  return documents;
}

}  // namespace mcpp

#include "data/preprocess/distributed/part_assembler.h"

#include "base/check.h"

namespace mcpp {

KeyAssembler::KeyAssembler(const PartsFolder& folder, std::size_t key)
    : key_(key),
      prefix_(folder.options().dataset_prefix(folder.keys()[key])),
      keep_empty_(folder.options().keep_empty),
      tokens_(folder.shared_output_path(folder.keys()[key])) {}

void KeyAssembler::add(const PartContent& part) {
  const KeyPart& key = part.metadata.keys[key_];
  const i64 bytes = info_.source_bytes + key.info.source_bytes, words = info_.source_words + key.info.source_words;
  info_ = key.info;
  info_.source_bytes = bytes;
  info_.source_words = words;
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
  check_input(size_ > 0, "preprocess: the input has no text for ", prefix_);
  tokens_.truncate(size_);  // an earlier run may have written a longer file
  tokens_.sync();
}

PreprocessOutput KeyAssembler::publish() const {
  PreprocessOutput output{.prefix = prefix_, .info = info_};
  output.info.documents = std::ssize(index_.sequences_in_document);
  output.info.tokens = size_ / token_bytes(index_.type);
  const Path bin = bin_path(prefix_);
  publish_dataset(prefix_, index_, [&] {
    std::filesystem::rename(tokens_.path(), bin);
    fsync_path(bin.has_parent_path() ? bin.parent_path() : Path("."));
  });
  write_dataset_info(prefix_, output.info);
  return output;
}

PartAssembler::PartAssembler(const PartsFolder& folder, const std::vector<WorkUnit>& units)
    : folder_(folder), units_(units), has_part_(units.size()) {
  for (std::size_t key = 0; key < folder.keys().size(); ++key)
    keys_.push_back(std::make_unique<KeyAssembler>(folder, key));
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void PartAssembler::add(std::size_t unit) {
  {
    const std::lock_guard lock(mutex_);
    has_part_[unit] = true;
  }
  changed_.notify_all();
}

void PartAssembler::run(const std::stop_token& stop) {
  try {
    while (num_assembled_ < units_.size()) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return has_part_[num_assembled_]; }) || stop.stop_requested()) return;
      lock.unlock();
      const PartContent part = folder_.read_part(units_[num_assembled_]);
      for (const auto& key : keys_) key->add(part);
      malformed_lines_ += part.metadata.malformed_lines;
      lock.lock();
      ++num_assembled_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

void PartAssembler::check() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void PartAssembler::finish() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || num_assembled_ == units_.size(); });
  }
  check();
  for (const auto& key : keys_) key->finish();
}

std::vector<PreprocessOutput> PartAssembler::publish() const {
  std::vector<PreprocessOutput> outputs;
  for (const auto& key : keys_) outputs.push_back(key->publish());
  return outputs;
}

i64 PartAssembler::empty_documents() const {
  i64 documents = 0;
  for (const auto& key : keys_) documents += key->empty_documents();
  return documents;
}

}  // namespace mcpp

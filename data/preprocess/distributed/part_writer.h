// Writer for the tokens of work units, which go to the output range of each unit.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "data/preprocess/distributed/parts_folder.h"
#include "data/preprocess/distributed/shared_output_file.h"

namespace mcpp {

// Buffering of the tokens of a unit until they are written to their output range.

/// Memory budget of a process for tokens that wait for their output range or for the disk. Thread-safe.
class TokenMemory {
 public:
  static constexpr i64 kDefaultLimit = i64{1} << 30;

  explicit TokenMemory(i64 limit = kDefaultLimit) : limit_(limit) {}

  /// Reserves `bytes`. If memory is exhausted, waits for a write in progress to release some; returns false if no write
  /// is in progress.
  bool reserve(i64 bytes);
  void release(i64 bytes);

  /// Returns an empty vector. Reuses a kept buffer if possible, because its pages are already mapped.
  std::vector<std::byte> buffer();
  /// Keeps a buffer for the next unit; frees it if many are kept already.
  void keep(std::vector<std::byte> buffer);

  /// Scope in which a write is in progress.
  class WriteScope {
   public:
    explicit WriteScope(TokenMemory& memory) : memory_(memory) { memory_.set_writing(true); }
    ~WriteScope() { memory_.set_writing(false); }
    WriteScope(const WriteScope&) = delete;
    WriteScope& operator=(const WriteScope&) = delete;

   private:
    TokenMemory& memory_;
  };

 private:
  void set_writing(bool is_writing);

  std::mutex mutex_;
  std::condition_variable changed_;
  i64 limit_, used_ = 0;
  bool is_writing_ = false;
  std::vector<std::vector<std::byte>> free_buffers_;
};

/// Tokens of a unit in memory or, if they do not fit, in temporary files.
class UnitTokens {
 public:
  UnitTokens(const PartsFolder& folder, const WorkUnit& unit, TokenMemory& memory);
  /// Returns the tokens that an earlier run left in files, or nullptr if there are none.
  static std::unique_ptr<UnitTokens> reopen_spilled(const PartsFolder& folder, const WorkUnit& unit,
                                                    TokenMemory& memory);
  ~UnitTokens();
  UnitTokens(const UnitTokens&) = delete;
  UnitTokens& operator=(const UnitTokens&) = delete;

  /// Appends tokens of a key.
  void add(std::size_t key, std::span<const std::byte> bytes);
  /// Completes the unit after the last tokens. Tokens in files are made durable together with metadata, so that a
  /// restarted run does not compute them again.
  void finish(PartContent part);

  const WorkUnit& unit() const { return unit_; }
  const PartContent& part() const { return part_; }
  std::span<const std::byte> bytes(std::size_t key) const;

 private:
  void spill_to_files();
  void map_files();

  const PartsFolder& folder_;
  const WorkUnit& unit_;
  TokenMemory& memory_;
  i64 reserved_bytes_ = 0;
  PartContent part_;
  std::vector<std::vector<std::byte>> in_memory_;         // [key]
  std::vector<std::unique_ptr<AtomicFile>> spill_files_;  // [key], empty if in memory
  std::vector<MappedFile> mapped_files_;                  // [key]
};

/// Tokenizes one unit on `workers` threads. Keeps references to the arguments. `progress` is called with the number of
/// bytes of the unit that are done. Throws like run_preprocess().
std::unique_ptr<UnitTokens> tokenize_unit(const PartsFolder& folder, const WorkUnit& unit, const Tokenizer& tokenizer,
                                          i64 workers, TokenMemory& memory,
                                          const std::function<void(i64 bytes)>& progress);

/// Writer of one process. Not thread-safe.
class PartWriter {
 public:
  explicit PartWriter(const PartsFolder& folder);

  /// Writes the full blocks of the unit and, once these are durable, its part file, which holds the remaining bytes.
  /// `output_ranges` is [key].
  void write(const UnitTokens& tokens, const std::vector<OutputRange>& output_ranges);

 private:
  /// Writes one key; returns the bytes outside of full blocks.
  std::vector<std::byte> write_blocks(std::size_t key, const UnitTokens& tokens, const OutputRange& output_range);

  const PartsFolder& folder_;
  std::vector<std::unique_ptr<SharedOutputFile>> output_files_;  // [key]
};

}  // namespace mcpp

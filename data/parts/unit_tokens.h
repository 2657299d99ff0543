// The tokens of a unit, from where they are made to their place.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "data/parts/parts_folder.h"

namespace mcpp {

/// What a process may keep of tokens that wait for their place, or for the disk.
class TokenMemory {
 public:
  static constexpr i64 kMost = i64{1} << 30;

  explicit TokenMemory(i64 most = kMost) : most_(most) {}

  /// Takes so many bytes more. While something is written, which will give some back, it waits for that; false where
  /// there is no room.
  bool take(i64 bytes);
  void give_back(i64 bytes);

  /// An empty vector: one that was kept, whose pages are there already, if any.
  std::vector<std::byte> buffer();
  /// For the next unit; of many some go.
  void keep(std::vector<std::byte> buffer);

  /// While it lives something is written.
  class Writing {
   public:
    explicit Writing(TokenMemory& memory) : memory_(memory) { memory_.set_writing(true); }
    ~Writing() { memory_.set_writing(false); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    TokenMemory& memory_;
  };

 private:
  void set_writing(bool writing);

  std::mutex mutex_;
  std::condition_variable changed_;
  i64 most_, used_ = 0;
  bool is_writing_ = false;
  std::vector<std::vector<std::byte>> kept_;
};

/// In memory or, where that has no room for them, in files of their own.
class UnitTokens {
 public:
  UnitTokens(const PartsFolder& folder, const WorkUnit& unit, TokenMemory& memory);
  /// Those that an earlier run left in files; nullptr where there are none.
  static std::unique_ptr<UnitTokens> left_in_files(const PartsFolder& folder, const WorkUnit& unit,
                                                   TokenMemory& memory);
  ~UnitTokens();
  UnitTokens(const UnitTokens&) = delete;
  UnitTokens& operator=(const UnitTokens&) = delete;

  /// The next tokens of a key.
  void add(std::size_t key, std::span<const std::byte> bytes);
  /// After the last. Those in files are durable then, with a note that they are there, and are not made again when this
  /// run is killed.
  void finish(PartContent part);

  const WorkUnit& unit() const { return unit_; }
  const PartContent& part() const { return part_; }
  std::span<const std::byte> bytes(std::size_t key) const;

 private:
  void move_to_files();
  void map_files();

  const PartsFolder& folder_;
  const WorkUnit& unit_;
  TokenMemory& memory_;
  i64 taken_ = 0;
  PartContent part_;
  std::vector<std::vector<std::byte>> in_memory_;     // [key]
  std::vector<std::unique_ptr<AtomicFile>> writing_;  // [key], empty where they are in memory
  std::vector<MappedFile> in_files_;                  // [key]
};

/// Tokenises one unit on so many threads. The other arguments outlive the result. `progress`: bytes of the unit that
/// are done. Errors as of run_preprocess().
std::unique_ptr<UnitTokens> tokenise_unit(const PartsFolder& folder, const WorkUnit& unit, const Tokenizer& tokenizer,
                                          i64 workers, TokenMemory& memory,
                                          const std::function<void(i64 bytes)>& progress);

}  // namespace mcpp

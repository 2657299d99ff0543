#include "nn/offload/file_states.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <ranges>

#include "base/check.h"
#include "nn/offload/host_memory.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

constexpr std::ptrdiff_t kMaxPrefetched = 2;

}  // namespace

/// Bytes of a vector, whichever region holds them. A snapshot is the region itself: it keeps it alive, and updates go
/// to the other one.
class FileStates::VectorBytes final : public StoredBytes {
 public:
  VectorBytes(FileStates& store, std::size_t segment, std::size_t vector)
      : store_(store), segment_(segment), vector_(vector) {}

  void read(i64 begin, std::span<std::byte> to) const override {
    store_.finish_writes();
    region()->read(begin, to);
  }
  void write(i64 begin, std::span<const std::byte> from) override {
    store_.free_all_slots();
    MCPP_CHECK(region().use_count() == 1, "the region to be written belongs to a snapshot");
    region()->write(begin, from);
  }
  std::shared_ptr<StoredBytes> snapshot() override {
    MCPP_CHECK(store_.options_.supports_snapshots, "the store was created without snapshots");
    store_.finish_writes();
    return region();
  }

 private:
  const std::shared_ptr<FileRegion>& region() const {
    const Vector& vector = store_.segments_[segment_][vector_];
    return vector.regions[vector.current];
  }

  FileStates& store_;
  std::size_t segment_, vector_;
};

FileStates::FileStates(StateStoreOptions options, std::unique_ptr<TransferQueue> queue)
    : options_(std::move(options)), queue_(std::move(queue)) {}

FileStates::~FileStates() = default;

void FileStates::add(const std::vector<VectorSpec>& vectors) {
  MCPP_CHECK(!file_, "a segment is added after reserve()");
  Segment& segment = segments_.emplace_back();
  for (const VectorSpec& vector : vectors) segment.push_back({.values = vector});
}

i64 FileStates::length_of(const Segment& segment) {
  i64 sum = 0;
  for (const Vector& vector : segment) sum += vector.bytes();
  return sum;
}

std::vector<i64> FileStates::longest_of(std::vector<i64> segments) {
  std::ranges::sort(segments, std::greater<>());
  segments.resize(std::min<std::size_t>(segments.size(), kSlots));
  return segments;
}

i64 FileStates::memory_for(std::vector<i64> segments) {
  const std::vector<i64> slots = longest_of(std::move(segments));
  return std::accumulate(slots.begin(), slots.end(), i64{0},
                         [](i64 sum, i64 bytes) { return sum + aligned_tensor_bytes(bytes); });
}

void FileStates::reserve() {
  std::vector<i64> segments;
  for (const Segment& segment : segments_) segments.push_back(length_of(segment));
  for (const i64 bytes : longest_of(std::move(segments))) slots_.emplace_back().bytes = bytes;
  const i64 regions_per_vector = options_.supports_snapshots ? 2 : 1;
  file_ = std::make_shared<ScratchFile>(options_.folder,
                                        std::max(bytes() * regions_per_vector, ScratchFile::kAlignment), options_.key);
  i64 offset = 0;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    for (i64 r = 0; r < regions_per_vector; ++r) {
      for (Vector& vector : segments_[s]) {
        vector.regions.push_back(
            std::make_shared<FileRegion>(file_, offset, vector.bytes(), str("segment ", s, " of ", options_.what)));
        offset += vector.bytes();
      }
    }
  }
}

i64 FileStates::bytes() const {
  i64 sum = 0;
  for (const Segment& segment : segments_) sum += length_of(segment);
  return sum;
}

FileStates::Slot* FileStates::slot_with(std::size_t segment) {
  const auto it = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return slot.use != Slot::Use::Free && slot.segment == segment; });
  return it == slots_.end() ? nullptr : &*it;
}

bool FileStates::has_capacity(const Slot& slot, std::size_t segment) const {
  return slot.bytes >= length_of(segments_[segment]);
}

FileStates::Slot* FileStates::free_slot(std::size_t segment, const Slot* kept) {
  const auto fits = [&](const Slot& slot) { return &slot != kept && has_capacity(slot, segment); };
  for (Slot& slot : slots_ | std::views::reverse)
    if (slot.use == Slot::Use::Free && fits(slot)) return &slot;
  const auto oldest = std::ranges::find_if(writing_, [&](const Slot* slot) { return fits(*slot); });
  if (oldest == writing_.end()) return nullptr;
  Slot* slot = *oldest;
  wait(*slot);
  return slot;
}

const FileStates::Slot* FileStates::reserved_slot() const {
  const auto fits_first_slot_only = [&](std::size_t segment) {
    return slots_.size() > 1 && !has_capacity(slots_[1], segment);
  };
  if (fits_first_slot_only(expected_.front())) return nullptr;
  const auto next_segments = expected_ | std::views::drop(1) | std::views::take(kMaxPrefetched);
  return std::ranges::any_of(next_segments, fits_first_slot_only) ? &slots_.front() : nullptr;
}

FileStates::Slot& FileStates::evict_prefetched_slot(std::size_t segment) {
  const auto it = std::ranges::find_if(slots_ | std::views::reverse, [&](const Slot& slot) {
    return slot.use == Slot::Use::Reading && has_capacity(slot, segment);
  });
  MCPP_CHECK(it != slots_.rend(), "segment ", segment, " is fetched while all slots that fit it are in use");
  wait(*it);
  it->use = Slot::Use::Free;
  expected_.push_front(it->segment);
  return *it;
}

Tensor FileStates::part_of(const Slot& slot, std::size_t vector) const {
  const Segment& segment = segments_[slot.segment];
  i64 first = 0;
  for (std::size_t before = 0; before < vector; ++before) first += segment[before].bytes();
  const Tensor& all = slot.memory.tensor;
  const i64 item = size_of(all.dtype());
  return all.flat(first / item, segment[vector].bytes() / item).reinterpret(segment[vector].values.dtype);
}

void FileStates::start(FileTransfer::Kind kind, Slot& slot, std::size_t vector) {
  std::byte* data = host_bytes(part_of(slot, vector)).data();
  slot.transfers.push_back(queue_->start(segments_[slot.segment][vector].region().transfer(kind, data)));
}

void FileStates::start_reading(Slot& slot, std::size_t segment) {
  slot.segment = segment;
  slot.use = Slot::Use::Reading;
  if (!slot.memory.tensor.defined())
    slot.memory = allocate_transfer_buffer(slot.bytes, *options_.host, options_.memory_class, options_.copies);
  for (std::size_t v = 0; v < segments_[segment].size(); ++v) {
    if (!segments_[segment][v].region().is_blank()) start(FileTransfer::Kind::Read, slot, v);
  }
}

void FileStates::wait(Slot& slot) {
  const bool is_write = slot.use == Slot::Use::Writing;
  const int error = queue_->wait_all(std::exchange(slot.transfers, {}));
  if (error != 0) file_->throw_transfer_error(is_write ? "write" : "read", error, options_.what);
  if (!is_write) return;
  std::erase(writing_, &slot);
  slot.use = Slot::Use::Free;
}

void FileStates::read_ahead() {
  const auto num_prefetched = [&] { return std::ranges::count(slots_, Slot::Use::Reading, &Slot::use); };
  while (!expected_.empty() && num_prefetched() < kMaxPrefetched) {
    const std::size_t next = expected_.front();
    Slot* slot = slot_with(next);
    if (slot && slot->use == Slot::Use::Writing) wait(*slot);
    if (!slot || slot->use == Slot::Use::Free) slot = free_slot(next, reserved_slot());
    if (!slot) return;
    expected_.pop_front();
    if (slot->use == Slot::Use::Free) start_reading(*slot, next);
  }
}

void FileStates::prefetch(const std::vector<std::size_t>& order) {
  expected_.assign(order.begin(), order.end());
  std::erase_if(expected_, [&](std::size_t segment) {
    const Slot* slot = slot_with(segment);
    return slot && slot->use == Slot::Use::Reading;
  });
  read_ahead();
}

std::vector<Tensor> FileStates::fetch(std::size_t segment) {
  MCPP_CHECK(file_, "fetch() before reserve()");
  Slot* slot = slot_with(segment);
  if (slot && slot->use == Slot::Use::Writing) wait(*slot);
  if (!slot || slot->use == Slot::Use::Free) {
    slot = free_slot(segment);
    if (!slot) slot = &evict_prefetched_slot(segment);  // fetched out of the prefetch order
    start_reading(*slot, segment);
  }
  MCPP_CHECK(slot->use == Slot::Use::Reading, "segment ", segment, " is fetched twice");
  std::erase(expected_, segment);
  wait(*slot);
  slot->use = Slot::Use::InUse;
  read_ahead();
  std::vector<Tensor> states;
  const Segment& vectors = segments_[segment];
  for (std::size_t v = 0; v < vectors.size(); ++v) {
    const Tensor memory = part_of(*slot, v);
    vectors[v].region().verify(host_bytes(memory));
    states.push_back(memory.flat(0, vectors[v].values.count));
  }
  return states;
}

FileStates::Slot& FileStates::slot_in_use(std::size_t segment) {
  Slot* slot = slot_with(segment);
  MCPP_CHECK(slot && slot->use == Slot::Use::InUse, "segment ", segment, " is dropped, but was not fetched");
  return *slot;
}

void FileStates::release_clean(std::size_t segment) {
  slot_in_use(segment).use = Slot::Use::Free;
  read_ahead();
}

void FileStates::drop(std::size_t segment) {
  Slot* slot = &slot_in_use(segment);
  slot->use = Slot::Use::Writing;
  for (std::size_t v = 0; v < segments_[segment].size(); ++v) {
    Vector& vector = segments_[segment][v];
    if (vector.regions[vector.current].use_count() > 1) vector.current = 1 - vector.current;
    MCPP_CHECK(vector.regions[vector.current].use_count() == 1, "another snapshot already holds segment ", segment);
    vector.region().record_checksums(host_bytes(part_of(*slot, v)));
    start(FileTransfer::Kind::Write, *slot, v);
  }
  writing_.push_back(slot);
}

void FileStates::finish_writes() {
  while (!writing_.empty()) wait(*writing_.front());
}

void FileStates::free_all_slots() {
  for (Slot& slot : slots_) {
    MCPP_CHECK(slot.use != Slot::Use::InUse, "segment ", slot.segment, " is in use");
    if (slot.use == Slot::Use::Free) continue;
    wait(slot);
    slot.use = Slot::Use::Free;
  }
}

StoredArray FileStates::stored(std::size_t segment, std::size_t vector) {
  return {std::make_shared<VectorBytes>(*this, segment, vector), segments_[segment][vector].values};
}

}  // namespace mcpp

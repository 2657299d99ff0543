#include "checkpoint/load/reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/checksum.h"
#include "base/object_store/stored_file.h"
#include "base/program/progress.h"
#include "checkpoint/format/hdf5.h"
#include "comm/object_collectives.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

template <class From, class To>
void convert(const std::byte* from, std::byte* to, i64 count) {
  for (i64 i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * static_cast<i64>(sizeof(From)), sizeof(From));
    const To y = from_double<To>(to_double(x));
    std::memcpy(to + i * static_cast<i64>(sizeof(To)), &y, sizeof(To));
  }
}

Converter converter_between(DType from, DType to) {
  if (from == to) return nullptr;
  return on_float(
      from, [&]<class From>() { return on_float(to, [&]<class To>() -> Converter { return &convert<From, To>; }); });
}

}  // namespace

Destination::Destination(const Region& shard, const Region& target, std::byte* to, Types types)
    : to_(to), types_(types), converter_(converter_between(types.stored, types.wanted)) {
  for_each_run(shard, target, [&](i64 from_at, i64 to_at, i64 count) {
    runs_.push_back({from_at, to_at, count});
    count_ += count;
  });
}

bool Destination::needs(i64 begin, i64 end) {
  while (next_ < runs_.size() && runs_[next_].end() <= begin) ++next_;
  return next_ < runs_.size() && runs_[next_].from < end;
}

std::byte* Destination::direct_address(i64 begin, i64 end) const {
  const Run& run = runs_[next_];
  if (converter_ || run.from > begin || run.end() < end) return nullptr;
  return to_ + (run.to + begin - run.from) * size_of(types_.wanted);
}

void Destination::copy_from(i64 begin, i64 end, const std::byte* values) const {
  for (auto run = runs_.begin() + static_cast<std::ptrdiff_t>(next_); run != runs_.end() && run->from < end; ++run) {
    const i64 first = std::max(begin, run->from), count = std::min(end, run->end()) - first;
    const std::byte* from = values + (first - begin) * size_of(types_.stored);
    std::byte* to = to_ + (run->to + first - run->from) * size_of(types_.wanted);
    if (converter_)
      converter_(from, to, count);
    else
      std::memcpy(to, from, static_cast<std::size_t>(count * size_of(types_.wanted)));
  }
}

namespace {

/// Part of a shard that a rank needs. Ordered, so that the max over ranks is kFull if any rank needs all of it.
constexpr float kNone = 0, kPart = 1, kFull = 2;

float needed_part(std::span<NamedShard* const> targets, const ShardEntry& shard) {
  float need = kNone;
  for (const NamedShard* target : targets) {
    const i64 count = overlap(shard, *target);
    if (count > 0) need = std::max(need, count == shard.numel() ? kFull : kPart);
  }
  return need;
}

/// Assignment of shard verification to the ranks of a node.
class VerificationPlan {
 public:
  /// `needs`: for all shards of each rank, in rank order.
  VerificationPlan(const Tensor& needs, int ranks) : needed_(needs), elements_(static_cast<std::size_t>(ranks), 0) {}

  bool is_needed_by_others(std::size_t shard, int rank) const {
    for (std::size_t other = 0; other < elements_.size(); ++other) {
      if (static_cast<int>(other) != rank && need(other, shard) != kNone) return true;
    }
    return false;
  }

  /// Returns the rank with the least work so far among the ranks that need `wanted` of a shard, or -1 if there is none.
  int next(std::size_t shard, float wanted, i64 elements) {
    int least_busy = -1;
    for (std::size_t rank = 0; rank < elements_.size(); ++rank) {
      if (need(rank, shard) != wanted) continue;
      if (least_busy < 0 || elements_[rank] < elements_[static_cast<std::size_t>(least_busy)])
        least_busy = static_cast<int>(rank);
    }
    if (least_busy >= 0) elements_[static_cast<std::size_t>(least_busy)] += elements;
    return least_busy;
  }

 private:
  float need(std::size_t rank, std::size_t shard) const {
    return needed_.data<float>()[rank * (static_cast<std::size_t>(needed_.numel()) / elements_.size()) + shard];
  }

  const Tensor& needed_;
  std::vector<i64> elements_;
};

constexpr i64 kUnknownOffset = -1;  // the offset was not read from HDF5 yet

/// Runs f and converts its errors to DamagedFile.
template <class F>
decltype(auto) with_damage_errors(F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (error.code() == ExitCode::Internal) throw;
    throw DamagedFile(error.what());
  }
}

/// Returns how to read shards that no other rank of the node needs. Weights without optimizer states are loaded
/// repeatedly, for evaluation or generation.
ReadMode read_mode_for(std::span<const NamedShard> targets) {
  const bool are_weights = std::ranges::all_of(targets, [](const NamedShard& x) { return is_model_tensor(x.name); });
  return are_weights && !targets.empty() ? ReadMode::PageCache : ReadMode::Direct;
}

}  // namespace

struct CheckpointReader::OpenFile {
  InputFile file;
  Hdf5File layout;
};

CheckpointReader::CheckpointReader(Path directory)
    : directory_(std::move(directory)), manifest_(read_manifest(directory_)), files_(manifest_.files.size()) {
  for (const TensorEntry& tensor : manifest_.tensors) {
    first_shard_.push_back(checks_.size());
    checks_.resize(checks_.size() + tensor.shards.size(), Check::WhenRead);
  }
  is_needed_by_others_.resize(checks_.size());
  offsets_.resize(checks_.size(), kUnknownOffset);
}

CheckpointReader::~CheckpointReader() = default;

CheckpointReader::OpenFile& CheckpointReader::open(i64 file) {
  auto& slot = files_[static_cast<std::size_t>(file)];
  if (slot) return *slot;
  const FileEntry& entry = manifest_.files[static_cast<std::size_t>(file)];
  const std::string path = (directory_ / entry.name).string();
  const Path copy = local_copy(path);
  InputFile content(copy);
  if (content.size() != entry.bytes) {
    remove_local_copy(path, copy);
    throw DamagedFile(str(path, " has ", content.size(), " bytes instead of ", entry.bytes));
  }
  try {
    Hdf5File layout(copy);
    slot = std::make_unique<OpenFile>(OpenFile{std::move(content), std::move(layout)});
  } catch (const Error& error) {
    const InputFile reopened(copy);  // throws if too many files are open, which is not damage
    remove_local_copy(path, copy);
    throw DamagedFile(error.what());
  }
  return *slot;
}

bool CheckpointReader::has_all_elements(const ShardSpec& target) const {
  const TensorEntry* tensor = manifest_.find(target.name);
  if (!tensor || tensor->global != target.box.global || tensor->dtype != target.dtype) return false;
  i64 stored_elements = 0;
  for (const ShardEntry& shard : tensor->shards) stored_elements += overlap(shard, target);
  return stored_elements == target.numel();
}

/// Throws unless the checkpoint's model has this target.
void CheckpointReader::check(const NamedShard& target, Conversion conversion) const {
  const TensorEntry& tensor = tensor_entry(manifest_, target.name, directory_);
  const DType stored = tensor.dtype, wanted = target.dtype();
  specs_of(std::span(&target, 1));  // checks the number of elements
  const std::string defect = find_defect(target);
  MCPP_CHECK(defect.empty(), target.name, ": ", defect);
  check_input(tensor.global == target.box.global, directory_.string(), ": ", target.name, " has shape ", tensor.global,
              "; this model needs ", target.box.global);
  check_input(stored == wanted || (conversion == Conversion::Convert && is_float(stored) && is_float(wanted)),
              directory_.string(), ": ", target.name, " is stored as ", name_of(stored), ", expected ",
              name_of(wanted));
}

void CheckpointReader::read(NamedShard& target, Conversion conversion) {
  check(target, conversion);
  fill(Job{index_of(target.name), {&target}});
}

Tensor CheckpointReader::read_full_tensor(std::string_view name, Device& device) {
  const TensorEntry& tensor = tensor_entry(manifest_, name, directory_);
  NamedShard target(tensor.name, {tensor.global, Shape(tensor.global.size(), 0), tensor.global},
                    Tensor::empty(tensor.global, tensor.dtype, device, MemoryClass::Other));
  read(target);
  return target.data;
}

std::optional<Damage> CheckpointReader::load(std::span<NamedShard> targets, const LoadingRanks& ranks,
                                             Conversion conversion) {
  run_on_all_ranks(ranks.world, [&] {
    for (const NamedShard& target : targets) check(target, conversion);
    return std::string();
  });
  Jobs jobs;
  for (NamedShard& target : targets) {
    const std::size_t tensor = index_of(target.name);
    jobs.try_emplace(tensor, Job{tensor, {}}).first->second.targets.push_back(&target);
  }
  assign_verification(jobs, ranks);
  const std::vector<std::string> reports = run_on_all_ranks(ranks.world, [&] {
    try {
      const std::vector<const Job*> order = sort_by_file_offset(jobs);
      load_bytes_ = bytes_to_read(jobs);
      blocks_ = std::make_unique<BlockReader>();
      const std::shared_ptr<void> over(nullptr, [this](void*) {
        blocks_ = nullptr;
        load_bytes_ = 0;
      });
      const ReadMode mode = read_mode_for(targets);
      for (const Job* job : order) declare(*job, mode);
      for (const Job* job : order) fill(*job);
    } catch (const DamagedFile& error) {
      remove_local_copies();
      return std::string(error.what());
    }
    return std::string();
  });
  return first_damage(reports);
}

/// Removes the copies of objects in use: one of them is damaged, and the next load must not read it again.
void CheckpointReader::remove_local_copies() {
  for (std::size_t file = 0; file < files_.size(); ++file)
    if (files_[file]) remove_local_copy(directory_ / manifest_.files[file].name, files_[file]->file.path());
}

std::size_t CheckpointReader::index_of(std::string_view name) const {
  return static_cast<std::size_t>(&tensor_entry(manifest_, name, directory_) - manifest_.tensors.data());
}

/// Assigns shards to verify to this rank; adds a job for each tensor that it only verifies.
void CheckpointReader::assign_verification(Jobs& jobs, const LoadingRanks& ranks) {
  const auto count = static_cast<i64>(checks_.size());
  Tensor max_needs = Tensor::zeros({count}, DType::F32, host_, MemoryClass::Other);
  float* needs = max_needs.data<float>();
  for (const auto& [t, job] : jobs) {
    float* shard = needs + first_shard_[t];
    for (const ShardEntry& entry : manifest_.tensors[t].shards) *shard++ = needed_part(job.targets, entry);
  }
  const bool is_shared = manifest_.coverage == Coverage::Full;  // otherwise each rank has its own files
  const auto self = make_self_communicator();
  Communicator& node = is_shared ? ranks.node : *self;
  Tensor on_node = Tensor::empty({node.size() * count}, DType::F32, host_, MemoryClass::Other);
  node.all_gather(max_needs, on_node).wait();
  if (is_shared) ranks.world.all_reduce(max_needs, ReduceOp::Max).wait();

  VerificationPlan plan(on_node, node.size());
  int next_rank = 0;
  for (std::size_t t = 0; t < first_shard_.size(); ++t) {
    std::size_t shard = first_shard_[t];
    for (const ShardEntry& entry : manifest_.tensors[t].shards) {
      const float max_need = needs[shard];
      const std::size_t i = shard++;
      if (max_need == kNone) continue;
      const bool is_assigned_here = is_shared && max_need == kPart
                                        ? next_rank++ % ranks.world.size() == ranks.world.rank()
                                        : plan.next(i, max_need, entry.numel()) == node.rank();
      checks_[i] = is_assigned_here ? Check::Now : Check::Done;
      is_needed_by_others_[i] = plan.is_needed_by_others(i, node.rank());
      if (is_assigned_here) jobs.try_emplace(t, Job{t, {}});
    }
  }
}

/// Orders jobs by the offset of their first element, so that files are read front to back.
std::vector<const CheckpointReader::Job*> CheckpointReader::sort_by_file_offset(const Jobs& jobs) {
  std::vector<std::pair<std::pair<i64, i64>, const Job*>> order;
  for (const auto& entry : jobs) {
    const Job& job = entry.second;
    const TensorEntry& tensor = manifest_.tensors[job.tensor];
    const Check* check = &checks_[first_shard_[job.tensor]];
    const auto first = std::ranges::find_if(tensor.shards, [&](const ShardEntry& shard) {
      return *check++ == Check::Now || needed_part(job.targets, shard) != kNone;
    });
    const bool has_any = first != tensor.shards.end();
    order.emplace_back(has_any ? std::pair(first->file, offset_of(tensor, *first)) : std::pair<i64, i64>(), &job);
  }
  std::ranges::stable_sort(order, {}, [](const auto& item) { return item.first; });
  std::vector<const Job*> result;
  for (const auto& [offset, job] : order) result.push_back(job);
  return result;
}

i64 CheckpointReader::bytes_to_read(const Jobs& jobs) const {
  i64 bytes = 0;
  for (const auto& [t, job] : jobs) {
    const Check* check = &checks_[first_shard_[t]];
    for (const ShardEntry& shard : manifest_.tensors[t].shards) {
      const bool is_read = *check++ == Check::Now || needed_part(job.targets, shard) != kNone;
      if (is_read) bytes += shard.numel() * size_of(manifest_.tensors[t].dtype);
    }
  }
  return bytes;
}

bool CheckpointReader::is_read_in_blocks(Check check, i64 offset, i64 size) const {
  return blocks_ && check == Check::Now && offset % size == 0;
}

void CheckpointReader::declare(const Job& job, ReadMode unshared_mode) {
  const TensorEntry& tensor = manifest_.tensors[job.tensor];
  std::size_t i = first_shard_[job.tensor];
  for (const ShardEntry& shard : tensor.shards) {
    const std::size_t number = i++;
    if (checks_[number] != Check::Now) continue;
    const i64 offset = offset_of(tensor, shard), size = size_of(tensor.dtype);
    if (is_read_in_blocks(checks_[number], offset, size))
      blocks_->declare(open(shard.file).file, offset, shard.numel() * size,
                       is_needed_by_others_[number] ? ReadMode::PageCache : unshared_mode);
  }
}

i64 CheckpointReader::offset_of(const TensorEntry& tensor, const ShardEntry& shard) {
  const std::size_t first = first_shard_[static_cast<std::size_t>(&tensor - manifest_.tensors.data())];
  i64& offset = offsets_[first + static_cast<std::size_t>(&shard - tensor.shards.data())];
  if (offset == kUnknownOffset) {
    const Hdf5File& layout = open(shard.file).layout;
    offset = with_damage_errors([&] { return layout.offset_of(shard.dataset, tensor.dtype, shard.numel()); });
  }
  return offset;
}

void CheckpointReader::fill(const Job& job) {
  const TensorEntry& tensor = manifest_.tensors[job.tensor];
  std::vector<Tensor> values;  // of each target, in host memory
  std::vector<i64> left;       // by target: elements not yet read
  for (const NamedShard* target : job.targets) {
    values.push_back(target->is_in_host_memory()
                         ? target->data
                         : Tensor::empty({target->numel()}, target->dtype(), host_, MemoryClass::Other));
    left.push_back(target->numel());
  }
  for (std::size_t s = 0; s < tensor.shards.size(); ++s) {
    const ShardEntry& shard = tensor.shards[s];
    std::vector<Destination> destinations;
    for (std::size_t i = 0; i < values.size(); ++i) {
      Destination destination(shard, *job.targets[i], static_cast<std::byte*>(values[i].raw()),
                              {tensor.dtype, values[i].dtype()});
      left[i] -= destination.count();
      if (destination.count() > 0) destinations.push_back(std::move(destination));
    }
    Check& check = checks_[first_shard_[job.tensor] + s];
    if (destinations.empty() && check != Check::Now) continue;
    read_shard(tensor, shard, destinations, check);
    check = Check::Done;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const i64 all = values[i].numel();
    check_input(left[i] == 0, directory_.string(), ": ", tensor.name, ": only ", all - left[i], " of ", all,
                " elements are in the checkpoint");
    if (!job.targets[i]->is_in_host_memory()) job.targets[i]->write(values[i]);
  }
}

/// Reads in one pass, skipping unneeded parts unless the shard is verified.
void CheckpointReader::read_shard(const TensorEntry& tensor, const ShardEntry& shard,
                                  std::span<Destination> destinations, Check check) {
  const bool should_verify = check != Check::Done;
  const InputFile& file = open(shard.file).file;
  const i64 offset = offset_of(tensor, shard), size = size_of(tensor.dtype), step = BlockReader::kChunkBytes / size;
  Checksum sum;
  for (i64 first = 0, last = 0; first < shard.numel(); first = last) {
    last = std::min(first + step, shard.numel());
    std::span<const std::byte> chunk;
    if (is_read_in_blocks(check, offset, size)) {
      chunk = with_damage_errors([&] { return blocks_->at(file, offset + first * size, (last - first) * size, size); });
      last = first + static_cast<i64>(chunk.size()) / size;
    }
    i64 num_needing = 0;
    for (Destination& destination : destinations) num_needing += destination.needs(first, last);
    if (num_needing == 0 && !should_verify) continue;
    std::byte* destination = nullptr;
    if (chunk.empty()) {
      if (num_needing == 1 && destinations.size() == 1) destination = destinations[0].direct_address(first, last);
      chunk = read_chunk(file, offset + first * size, (last - first) * size, destination);
    }
    if (should_verify) sum.update(chunk);
    if (listener_) listener_(static_cast<i64>(chunk.size()), load_bytes_);
    for (std::size_t i = 0; !destination && i < destinations.size(); ++i)
      destinations[i].copy_from(first, last, chunk.data());
  }
  if (should_verify && sum.hex() != shard.checksum) {
    throw DamagedFile(
        str(file.path().string(), " is damaged: ", tensor.name, " differs from its checksum in the manifest"));
  }
}

std::span<const std::byte> CheckpointReader::read_chunk(const InputFile& file, i64 offset, i64 bytes,
                                                        std::byte* destination) {
  chunk_.resize(BlockReader::kChunkBytes);
  const std::span chunk(destination ? destination : chunk_.data(), static_cast<std::size_t>(bytes));
  with_damage_errors([&] { file.read(offset, chunk); });
  return chunk;
}

const TensorEntry& tensor_entry(const Manifest& manifest, std::string_view name, const Path& directory) {
  if (const TensorEntry* entry = manifest.find(name)) return *entry;
  std::vector<std::string> names;
  for (const TensorEntry& tensor : manifest.tensors) names.push_back(tensor.name);
  const std::string nearest = nearest_name(name, names);
  fail(ExitCode::BadInput, directory.string(), " has no tensor ", name,
       nearest.empty() ? std::string() : "; the nearest is " + nearest);
}

CheckpointReader::ReadListener make_progress_listener(const Log& log, std::string what) {
  struct ProgressState {
    std::unique_ptr<Progress> progress;  // created on first use
    double done = 0, all = 0;
  };
  return [&log, what = std::move(what), shown = std::make_shared<ProgressState>()](i64 bytes, i64 all) {
    const auto total = static_cast<double>(all);
    if (!shown->progress || total != shown->all) {  // a new load begins
      *shown = {};
      shown->progress = std::make_unique<Progress>(log, what, ProgressOptions{.total = total});
      shown->all = total;
    }
    shown->progress->update(shown->done += static_cast<double>(bytes));
  };
}

}  // namespace mcpp

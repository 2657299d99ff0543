#include "checkpoint/load/destination.h"

#include <algorithm>
#include <cstring>

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

void Destination::copy_from(i64 begin, i64 end, const std::byte* numbers) const {
  for (auto run = runs_.begin() + static_cast<std::ptrdiff_t>(next_); run != runs_.end() && run->from < end; ++run) {
    const i64 first = std::max(begin, run->from), count = std::min(end, run->end()) - first;
    const std::byte* from = numbers + (first - begin) * size_of(types_.stored);
    std::byte* to = to_ + (run->to + first - run->from) * size_of(types_.wanted);
    if (converter_)
      converter_(from, to, count);
    else
      std::memcpy(to, from, static_cast<std::size_t>(count * size_of(types_.wanted)));
  }
}

}  // namespace mcpp

#include "data/dataset/index/random_state.h"

#include <bit>
#include <limits>

#include "base/check.h"

namespace mcpp {

RandomState::RandomState(i64 seed) : generator_(static_cast<u32>(seed)) {
  check_input(seed >= 0 && seed <= std::numeric_limits<u32>::max(), "the data seed ", seed,
              " is outside 0 .. 4294967295");
}

u64 RandomState::interval(u64 max) {
  if (max == 0) return 0;
  const u64 mask = ~u64{0} >> std::countl_zero(max);
  const bool wide = max > std::numeric_limits<u32>::max();
  u64 value = 0;
  do {
    value = generator_();
    if (wide) value = value << 32 | generator_();
    value &= mask;
  } while (value > max);
  return value;
}

}  // namespace mcpp

// Bit-exact subset of numpy.random.RandomState that Megatron-LM's data order needs: seeding and shuffle.
#pragma once
#include <random>
#include <span>
#include <utility>

#include "base/types.h"

namespace mcpp {

class RandomState {
 public:
  /// Seeds the generator. Throws BadInput unless 0 <= seed < 2^32, as in numpy.
  explicit RandomState(i64 seed);

  /// Shuffles as RandomState.shuffle of a one-dimensional array (Fisher-Yates from the end). Calls `check`, which may
  /// throw, periodically.
  template <class T, class Check>
  void shuffle(std::span<T> values, const Check& check) {
    constexpr u64 kCheckInterval = 1 << 16;
    for (u64 i = values.size(); i-- > 1;) {
      if (i % kCheckInterval == 0) check();
      std::swap(values[i], values[interval(i)]);
    }
  }
  template <class T>
  void shuffle(std::span<T> values) {
    shuffle(values, [] {});
  }

  /// Returns a uniform value in [0, max]: draws masked to the next power of two until one fits (numpy's legacy
  /// random_interval).
  u64 interval(u64 max);

 private:
  std::mt19937 generator_;
};

}  // namespace mcpp

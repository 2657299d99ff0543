// Sequence of units with synthetic gradients, trained on data-parallel ranks, and the expected sums.
#pragma once
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "base/philox.h"
#include "comm/communicator.h"
#include "parallel/dp/buckets/buffer.h"

namespace mcpp::test {

/// Distribution of samples: rank = replica * shards + index in the shard group.
struct DpLayout {
  int shards = 1, replicas = 1;
  int node = 1;  ///< neighbors of a shard group that form a node; 1: no nodes
  int ranks() const { return shards * replicas; }
};

/// Groups of one rank of `world`.
struct DpGroups {
  DpGroups(Communicator& world, const DpLayout& layout)
      : shard(world.split(world.rank() / layout.shards, 0)), replicate(world.split(world.rank() % layout.shards, 0)) {
    if (layout.node == 1) return;
    node = world.split(world.rank() / layout.node, 0);
    const int node_index = world.rank() / layout.shards, index_in_node = world.rank() % layout.node;
    across = world.split(node_index * layout.node + index_in_node, 0);
  }

  DataParallelGroups refs() const { return {*shard, *replicate, node.get(), across.get()}; }

  std::unique_ptr<Communicator> shard, replicate, node, across;
};

/// Returns contribution `part` of one rank's microbatch to a gradient: about 1 in magnitude, of either sign, with all
/// bits in use.
inline float made_up_grad(int step, int microbatch, int rank, int part, const std::string& name, i64 i) {
  const auto index = static_cast<u64>((((step * 10 + microbatch) * 10 + rank) * 10 + part) * 100'000 + i);
  return static_cast<float>(philox_key(3, name, index) >> 40) * 0x1p-23f - 1;
}

/// Returns the weight that a test assigns in `step`; exact in bf16.
inline double made_up_weight(int step, const std::string& name, i64 i) {
  return static_cast<double>(philox_key(5, name, static_cast<u64>(step * 100'000 + i)) >> 57) - 64;
}

/// Model with odd sizes. Unit 3 has no parameters, and layer2.unused never receives a gradient.
struct ToyModel {
  struct Entry {
    Param param;
    int unit;
  };
  static constexpr int kUnits = 5;

  ToyModel() {
    add("embedding.weight", {37, 5}, 0);
    add("layer1.weight", {10, 7}, 1);
    add("layer1.bias", {7}, 1);
    add("layer2.weight", {13, 11}, 2);
    add("layer2.unused", {3}, 2);
    add("layer2.bias", {11}, 2);
    add("output.weight", {129, 3}, 4);
    add("norm.weight", {1}, 4);
  }
  void add(const std::string& name, const Shape& shape, int unit) {
    Param& param = entries.emplace_back(Entry{Param(name, shape, Init::Normal), unit}).param;
    if (name.starts_with("layer") && shape.size() == 2) param.matrices = {slab(shape, 0, 0, shape[0])};
  }
  std::vector<UnitParam> unit_params() {
    std::vector<UnitParam> list;
    for (Entry& e : entries) list.push_back({&e.param, e.unit});
    return list;
  }
  i64 numel() const {
    i64 sum = 0;
    for (const Entry& e : entries) sum += e.param.numel();
    return sum;
  }
  static bool is_used(const Param& param) { return !param.name.ends_with(".unused"); }

  std::list<Entry> entries;  // keeps addresses stable
};

/// Training steps of one rank.
struct ToyTraining {
  ToyModel& model;
  ParamAndGradBuffer& buffer;
  int rank = 0;
  int microbatches = 1;
  /// The output unit also uses the embedding, which receives a gradient from both.
  bool is_tied = false;
  std::function<void(const Param&)> on_forward = [](const Param&) {};  ///< called while the parameter is acquired

  void run_step(int step) {
    buffer.clear_grads();
    for (int m = 0; m < microbatches; ++m) {
      forward(m + 1 == microbatches);
      backward(step, m, m + 1 == microbatches);
    }
    buffer.finish();
  }
  void forward(bool last) {
    for (int unit = 0; unit < ToyModel::kUnits; ++unit) {
      const bool borrows = is_tied && unit + 1 == ToyModel::kUnits;
      buffer.acquire(unit, Use::Forward);
      if (borrows) buffer.acquire(0, Use::Forward);
      for (const ToyModel::Entry& e : model.entries) {
        if (e.unit == unit || (borrows && e.unit == 0)) on_forward(e.param);
      }
      if (borrows) buffer.release(0, Use::Forward, last);
      buffer.release(unit, Use::Forward, last);
    }
  }
  void backward(int step, int microbatch, bool last) {
    for (int unit = ToyModel::kUnits - 1; unit >= 0; --unit) {
      buffer.acquire(unit, Use::Backward);
      if (is_tied && unit + 1 == ToyModel::kUnits) {
        buffer.acquire(0, Use::Backward);  // until backward reaches the embedding
        add_grads(0, step, microbatch, 1);
      }
      add_grads(unit, step, microbatch, 0);
      buffer.release(unit, Use::Backward, last);
    }
    if (is_tied) buffer.release(0, Use::Backward, last);
  }
  void add_grads(int unit, int step, int microbatch, int part) {
    for (ToyModel::Entry& e : model.entries) {
      if (e.unit != unit || !ToyModel::is_used(e.param)) continue;
      e.param.add_grad([&](Tensor& sum, float beta) {
        on_float(sum.dtype(), [&]<class T>() {
          T* grad = sum.data<T>();
          for (i64 i = 0; i < e.param.numel(); ++i) {
            const float g = made_up_grad(step, microbatch, rank, part, e.param.name, i);
            grad[i] = from_double<T>(beta == 0 ? g : to_double(grad[i]) + g);
          }
        });
      });
    }
  }
};

/// Runs a step of one microbatch in which fill(param, sum) writes each gradient.
inline void reduce_gradients(ToyModel& model, ParamAndGradBuffer& buffer,
                             const std::function<void(const Param&, Tensor& sum)>& fill) {
  buffer.clear_grads();
  for (int unit = ToyModel::kUnits - 1; unit >= 0; --unit) {
    buffer.acquire(unit, Use::Backward);
    for (ToyModel::Entry& e : model.entries) {
      if (e.unit == unit) e.param.add_grad([&](Tensor& sum, float) { fill(e.param, sum); });
    }
    buffer.release(unit, Use::Backward, true);
  }
  buffer.finish();
}

/// Expected sum over all ranks and microbatches, in the summation order of a ZeRO stage. T is the type of sums.
template <class T>
struct ToySum {
  DpLayout layout;
  int microbatches = 1;
  bool is_tied = false;
  bool reduces_every_microbatch = false;  ///< at stages 2 and 3

  T operator()(int step, const Param& param, i64 i) const {
    if (!ToyModel::is_used(param)) return 0;
    return sum(layout.replicas, [&](int replica) {
      const auto rank = [&](int index) { return replica * layout.shards + index; };
      const auto pass = [&](int r, int m) { return contributions(step, m, r, param, i, 0, true); };
      if (reduces_every_microbatch) {
        return sum(microbatches, [&](int m) { return sum(layout.shards, [&](int p) { return pass(rank(p), m); }); });
      }
      return sum(layout.shards, [&](int p) {
        T total = 0;
        for (int m = 0; m < microbatches; ++m) total = contributions(step, m, rank(p), param, i, total, m == 0);
        return total;
      });
    });
  }

 private:
  T contributions(int step, int m, int rank, const Param& param, i64 i, T total, bool overwrites) const {
    const int parts = is_tied && param.name == "embedding.weight" ? 2 : 1;
    for (int part = parts - 1; part >= 0; --part) {
      const T g = made_up_grad(step, m, rank, part, param.name, i);
      total = overwrites ? g : static_cast<T>(total + g);
      overwrites = false;
    }
    return total;
  }
  template <class F>
  static T sum(int count, const F& f) {
    T total = f(0);
    for (int k = 1; k < count; ++k) total = static_cast<T>(total + f(k));
    return total;
  }
};

}  // namespace mcpp::test

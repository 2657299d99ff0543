// A temporary folder, tensors whose numbers tell where they belong, and ranks as threads.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"

namespace mcpp {

/// The message of the Error that f throws; "" when it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~CheckpointTest() override {
    std::error_code ignored;
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(folder_);
  }

  /// Elements of `region` of the global tensor whose element i has the value first + i, in any element type.
  NamedShard numbered(const std::string& name, const Region& region, DType dtype = DType::F32, i64 first = 0) {
    NamedShard shard(name, region.box, region.flat_begin, region.flat_end,
                     Tensor::empty({region.numel()}, dtype, device_, MemoryClass::Other));
    for_each_run(whole({region.box.global, Shape(region.box.global.size(), 0), region.box.global}), region,
                 [&](i64 from, i64 to, i64 count) {
                   for (i64 i = 0; i < count; ++i) store(shard.data, to + i, static_cast<double>(first + from + i));
                 });
    return shard;
  }
  NamedShard numbered(const std::string& name, const Shape& shape, DType dtype = DType::F32, i64 first = 0) {
    return numbered(name, whole({shape, Shape(shape.size(), 0), shape}), dtype, first);
  }

  /// Calls f.template operator()<T>() with any element type.
  template <class F>
  static void on_type(DType t, F&& f) {
    if (t == DType::F32) f.template operator()<float>();
    if (t == DType::BF16) f.template operator()<BFloat16>();
    if (t == DType::F64) f.template operator()<double>();
    if (t == DType::I32) f.template operator()<i32>();
    if (t == DType::I64) f.template operator()<i64>();
  }
  static void store(const Tensor& t, i64 index, double value) {
    on_type(t.dtype(), [&]<class T>() { t.data<T>()[index] = from_double<T>(value); });
  }
  static double load(const Tensor& t, i64 index) {
    double value = 0;
    on_type(t.dtype(), [&]<class T>() { value = to_double(t.data<T>()[index]); });
    return value;
  }

  static bool same_bits(const Tensor& a, const Tensor& b) {
    return a.dtype() == b.dtype() && a.bytes() == b.bytes() &&
           (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.bytes())) == 0);
  }

  /// Saves with one rank.
  Path save(i64 iteration, std::span<const NamedShard> shards, const Retention& retention = {}) {
    RunState state{.iteration = iteration, .consumed_samples = 8 * iteration};
    return save_checkpoint(folder_, state, shards, *self_, log_, retention);
  }

  const Path folder_ =
      Path(testing::TempDir()) /
      (std::string("mcpp_") + testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() + "_" +
       testing::UnitTest::GetInstance()->current_test_info()->name());
  CpuDevice device_;
  Log log_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

/// What checkpoints use of a Communicator, between threads.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : size_(size), inputs_(static_cast<std::size_t>(size)), barrier_(size) {}

  /// Runs f(communicator) on every rank; returns what each threw, or "".
  std::vector<std::string> run(const std::function<void(Communicator&)>& f) {
    std::vector<std::string> errors(static_cast<std::size_t>(size_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        Member member(*this, rank);
        errors[static_cast<std::size_t>(rank)] = error_of([&] { f(member); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  class Member final : public Communicator {
   public:
    Member(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return group_.size_; }
    Work all_gather(const Tensor& shard, Tensor& full) override {
      group_.inputs_[static_cast<std::size_t>(rank_)] = shard;
      barrier();
      auto* to = static_cast<std::byte*>(full.raw());
      for (const Tensor& part : group_.inputs_) {
        if (part.bytes() > 0) std::memcpy(to, part.raw(), static_cast<std::size_t>(part.bytes()));
        to += part.bytes();
      }
      barrier();
      group_.inputs_[static_cast<std::size_t>(rank_)] = {};  // its device may go now
      return {};
    }
    void barrier() override { group_.barrier_.arrive_and_wait(); }
    Work all_reduce(Tensor&, ReduceOp) override { unused(); }
    Work reduce_scatter(const Tensor&, Tensor&) override { unused(); }
    Work broadcast(Tensor&, int) override { unused(); }
    Work all_to_all(const Tensor&, Tensor&) override { unused(); }
    Work send(const Tensor&, int) override { unused(); }
    Work recv(Tensor&, int) override { unused(); }
    std::unique_ptr<Communicator> split(int, int) override { unused(); }
    void abort(int exit_code) noexcept override { std::_Exit(exit_code); }

   private:
    [[noreturn]] static void unused() { fail(ExitCode::Internal, "checkpoints do not use this"); }
    ThreadGroup& group_;
    int rank_;
  };

  int size_;
  std::vector<Tensor> inputs_;
  std::barrier<> barrier_;
};

}  // namespace mcpp

// Function with a stack of its own that can be suspended and resumed on one thread.
#pragma once
#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <functional>

namespace mcpp {

/// Function that runs on a stack of its own, on the thread that calls resume(). Because the thread does not change,
/// thread-local state such as the current GPU and the caches of libraries stays valid. Not thread-safe.
///
/// A fiber must not suspend itself inside a catch block or while an exception unwinds its stack, because the C++
/// runtime keeps exceptions per thread.
class Fiber {
 public:
  explicit Fiber(std::function<void()> function);
  /// If the function is suspended, unwinds its stack: suspend() throws Canceled.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the function until it suspends itself or returns. Rethrows its exception.
  void resume();
  /// Suspends the function, which must be the caller, until the next resume().
  void suspend();
  /// Returns true if the function has returned or thrown.
  bool is_done() const { return is_done_; }

  /// Exception that unwinds a suspended function. Only its destructors should react to it.
  struct Canceled {};

 private:
  /// Memory of a stack with a guard page below it, so that an overflow faults.
  class Stack {
   public:
    Stack();
    ~Stack();
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    std::byte* bottom() const;
    std::size_t size() const;

   private:
    void* memory_;
  };
  /// Context of the caller or the function while it is suspended, and what sanitizers need for the switch.
  struct Side {
    ucontext_t context = {};
    void* fake_stack = nullptr;
    const void* bottom = nullptr;
    std::size_t size = 0;
    void* thread = nullptr;
  };

  static void enter(unsigned high, unsigned low);
  void run() noexcept;
  void switch_to_function();
  void switch_to_caller(bool is_last);

  std::function<void()> function_;
  Stack stack_;
  Side caller_, own_;
  std::exception_ptr error_;
  bool is_started_ = false, is_done_ = false, is_canceled_ = false;
};

}  // namespace mcpp

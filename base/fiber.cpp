#include "base/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/check.h"

#ifdef __has_feature
#define MCPP_HAS_FEATURE(x) __has_feature(x)
#else
#define MCPP_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || MCPP_HAS_FEATURE(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define MCPP_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) || MCPP_HAS_FEATURE(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define MCPP_TSAN 1
#endif

namespace mcpp {
namespace {

/// Size of the stack of the main thread on Linux. Only pages that are used need memory.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Notifies sanitizers of switches. Otherwise they report accesses to the other stack.

void begin_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] std::size_t size, [[maybe_unused]] void* thread) {
#ifdef MCPP_ASAN
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
#ifdef MCPP_TSAN
  __tsan_switch_to_fiber(thread, 0);
#endif
}

void end_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** bottom,
                [[maybe_unused]] std::size_t* size) {
#ifdef MCPP_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
#endif
}

void* current_thread() {
#ifdef MCPP_TSAN
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

void* create_thread() {
#ifdef MCPP_TSAN
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

void destroy_thread([[maybe_unused]] void* thread) {
#ifdef MCPP_TSAN
  __tsan_destroy_fiber(thread);
#endif
}

}  // namespace

Fiber::Stack::Stack()
    : memory_(::mmap(nullptr, kStackBytes + page_bytes(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  MCPP_CHECK(memory_ != MAP_FAILED, "no address space is left for a stack of ", kStackBytes, " bytes");
  MCPP_CHECK(::mprotect(memory_, page_bytes(), PROT_NONE) == 0, "the end of a stack cannot be protected");
}

Fiber::Stack::~Stack() {
  ::munmap(memory_, kStackBytes + page_bytes());
}

std::byte* Fiber::Stack::bottom() const {
  return static_cast<std::byte*>(memory_) + page_bytes();
}

std::size_t Fiber::Stack::size() const {
  return kStackBytes;
}

Fiber::Fiber(std::function<void()> function) : function_(std::move(function)) {
  own_.bottom = stack_.bottom();
  own_.size = stack_.size();
  own_.thread = create_thread();
  MCPP_CHECK(::getcontext(&own_.context) == 0, "getcontext() failed");
  own_.context.uc_stack = {.ss_sp = stack_.bottom(), .ss_flags = 0, .ss_size = stack_.size()};
  own_.context.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  // makecontext() passes arguments of type int.
  ::makecontext(&own_.context, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
}

Fiber::~Fiber() {
  if (is_started_ && !is_done_) {
    is_canceled_ = true;
    switch_to_function();
  }
  destroy_thread(own_.thread);
}

void Fiber::resume() {
  MCPP_CHECK(!is_done_, "a fiber that has ended was resumed");
  is_started_ = true;
  switch_to_function();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fiber::suspend() {
  switch_to_caller(/*is_last=*/false);
  if (is_canceled_) throw Canceled{};
}

void Fiber::switch_to_function() {
  caller_.thread = current_thread();
  begin_switch(&caller_.fake_stack, own_.bottom, own_.size, own_.thread);
  ::swapcontext(&caller_.context, &own_.context);
  end_switch(caller_.fake_stack, nullptr, nullptr);
}

void Fiber::switch_to_caller(bool is_last) {
  begin_switch(is_last ? nullptr : &own_.fake_stack, caller_.bottom, caller_.size, caller_.thread);
  ::swapcontext(&own_.context, &caller_.context);
  end_switch(own_.fake_stack, &caller_.bottom, &caller_.size);
}

void Fiber::enter(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>((std::uintptr_t{high} << 32) | low)->run();
}

void Fiber::run() noexcept {
  end_switch(nullptr, &caller_.bottom, &caller_.size);
  try {
    function_();
  } catch (const Canceled&) {
  } catch (...) {
    error_ = std::current_exception();
  }
  is_done_ = true;
  switch_to_caller(/*is_last=*/true);
}

}  // namespace mcpp

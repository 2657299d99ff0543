#include "tensor/processor.h"

#include <unistd.h>

#include <chrono>

#include "base/machine.h"
#include "tensor/isa.h"
#include "tensor/on_device.h"

namespace mcpp {

template <>
std::string Processor<DeviceType::Cpu>::name(const Device&) {
  return cpu_isa_name();
}

template <>
SystemMemory Processor<DeviceType::Cpu>::memory(const Device&) {
  return {.total = physical_memory(), .free = ::sysconf(_SC_PAGESIZE) * ::sysconf(_SC_AVPHYS_PAGES)};
}

template <>
double Processor<DeviceType::Cpu>::seconds_of(Device&, const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <>
std::unique_ptr<DeviceClock> Processor<DeviceType::Cpu>::make_clock(Device&) {
  return nullptr;
}

template <>
void Processor<DeviceType::Cpu>::begin_range(const char*) noexcept {}
template <>
void Processor<DeviceType::Cpu>::end_range() noexcept {}

std::string device_name(const Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return Processor<D>::name(device); });
}

SystemMemory system_memory(const Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return Processor<D>::memory(device); });
}

double seconds_of(Device& device, const std::function<void()>& f) {
  return on_device(device.type(), [&]<DeviceType D>() { return Processor<D>::seconds_of(device, f); });
}

std::unique_ptr<DeviceClock> make_device_clock(Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return Processor<D>::make_clock(device); });
}

ProfileRange::ProfileRange(const Device& device, Profiler* profiler, const char* name, Detail detail,
                           const RangeInfo& info)
    : device_(device.type()), timed_(profiler, name, detail, info) {
  on_device(device_, [&]<DeviceType D>() { Processor<D>::begin_range(name); });
}

ProfileRange::~ProfileRange() {
  on_device(device_, [&]<DeviceType D>() { Processor<D>::end_range(); });
}

}  // namespace mcpp

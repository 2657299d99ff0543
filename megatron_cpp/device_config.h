// The processor that a run uses.
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"
#include "tensor/cpu/isa.h"
#include "tensor/device.h"

namespace mcpp {

template <>
struct EnumNames<DeviceType> {
  static constexpr std::array<std::string_view, 2> value{"cpu", "cuda"};
};

struct DeviceConfig {
  DeviceType device = DeviceType::Cpu;
  i64 num_threads = 0;
  CpuIsa cpu_isa = CpuIsa::Auto;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("device", self.device, "where tensors live and ops run");
    visit("num_threads", self.num_threads, "threads of a rank on the CPU; 0 = all usable cores", between(0, 4096));
    visit("cpu_isa", self.cpu_isa, "highest instruction set used, so that unlike machines can give the same bits");
  }

  /// Every rule between fields that does not hold, as "device.key: what is wrong and what is allowed".
  std::vector<std::string> conflicts() const {
    if (device == DeviceType::Cuda && cpu_isa != CpuIsa::Auto) {
      return {"device.cpu_isa: only read when device is \"cpu\""};
    }
    return {};
  }
};

}  // namespace mcpp

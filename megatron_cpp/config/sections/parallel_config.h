// Section [parallel]: the layout of a run over ranks, and the communication between ranks. Keys do not change the
// results of training unless their help says so.
#pragma once
#include <array>
#include <string_view>

#include "parallel/layout.h"

namespace mcpp {

/// Library that transfers the tensors of GPUs between ranks.
enum class DistributedBackend : u8 { Auto, Nccl, Mpi };
template <>
struct EnumNames<DistributedBackend> {
  static constexpr std::array<std::string_view, 3> value{"auto", "nccl", "mpi"};
};

struct ParallelConfig : Layout {
  DistributedBackend distributed_backend = DistributedBackend::Auto;
  double distributed_timeout_minutes = 10;
  double step_timeout_minutes = 1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    Layout::fields(self, visit);
    visit("distributed_backend", self.distributed_backend,
          "library that transfers tensors of GPUs: nccl, or mpi through host memory; auto = nccl unless two ranks "
          "share a GPU");
    visit("distributed_timeout_minutes", self.distributed_timeout_minutes,
          "abort with exit code 75 if a rank waits longer than this for other ranks", greater_than(0));
    visit("step_timeout_minutes", self.step_timeout_minutes,
          "limit for every training step but the first; at least five times the longest step so far", greater_than(0));
  }
};

}  // namespace mcpp

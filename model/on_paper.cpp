#include "model/on_paper.h"

namespace mcpp {
namespace {

class PaperDevice final : public Device {
 public:
  PaperDevice() : Device(DeviceType::Cpu) {}

 private:
  void* system_allocate(i64 bytes) override {
    fail(ExitCode::Internal, "a model on paper asks for ", bytes, " bytes of memory");
  }
  void system_free(void*) noexcept override {}
};

class PaperGroup final : public Communicator {
 public:
  explicit PaperGroup(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }

  Work all_reduce(Tensor&, ReduceOp) override { refuse(); }
  Work all_gather(const Tensor&, Tensor&) override { refuse(); }
  Work reduce_scatter(const Tensor&, Tensor&) override { refuse(); }
  Work broadcast(Tensor&, int) override { refuse(); }
  Work all_to_all(const Tensor&, Tensor&) override { refuse(); }
  Work all_to_all_v(const Tensor&, std::span<const Part>, Tensor&, std::span<const Part>) override { refuse(); }
  Work send(const Tensor&, int) override { refuse(); }
  Work recv(Tensor&, int) override { refuse(); }
  void barrier() override { refuse(); }
  std::unique_ptr<Communicator> split(int, int) override { refuse(); }
  void abort(int) noexcept override {}

 private:
  [[noreturn]] static void refuse() { fail(ExitCode::Internal, "a model on paper asks for other ranks"); }

  int size_;
};

}  // namespace

Paper::Paper(i64 tensor_parallel)
    : device_(std::make_unique<PaperDevice>()), tp_(std::make_unique<PaperGroup>(static_cast<int>(tensor_parallel))) {}

Paper::~Paper() = default;

ModelContext Paper::context(const ModelConfig& config) {
  return {.config = config, .recompute = {}, .device = *device_, .tp = *tp_};
}

void visit_on_paper(const ModelConfig& config, const std::function<void(const Param&)>& f) {
  Paper paper;
  const ModelContext context = paper.context(config);
  const auto visit = [&](GPTModel& part) { part.visit([&](Param& param, int) { f(param); }); };
  GPTModel embedding(context, {.first_layer = 0, .end_layer = 0, .has_embedding = true, .has_output = false}, nullptr);
  visit(embedding);
  for (i64 i = 0; i < config.num_layers; ++i) {
    GPTModel layer(context, {.first_layer = i, .end_layer = i + 1, .has_embedding = false, .has_output = false},
                   nullptr);
    visit(layer);
  }
  GPTModel output(context, {.first_layer = 0, .end_layer = 0, .has_embedding = false, .has_output = true}, &embedding);
  visit(output);
}

}  // namespace mcpp

#include "model/meta_model.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace mcpp {
namespace {

class MetaDevice final : public Device {
 public:
  MetaDevice() : Device(DeviceType::Cpu) {}

 private:
  void* system_allocate(i64 bytes) override {
    fail(ExitCode::Internal, "allocation on the meta device: ", bytes, " bytes");
  }
  void system_free(void*) noexcept override {}
};

class MetaCommunicator final : public Communicator {
 public:
  explicit MetaCommunicator(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }

  Work all_reduce(Tensor&, ReduceOp) override { reject(); }
  Work all_gather(const Tensor&, Tensor&) override { reject(); }
  Work reduce_scatter(const Tensor&, Tensor&) override { reject(); }
  Work broadcast(Tensor&, int) override { reject(); }
  Work all_to_all(const Tensor&, Tensor&) override { reject(); }
  Work all_to_all_v(const Tensor&, std::span<const Part>, Tensor&, std::span<const Part>) override { reject(); }
  Work send(const Tensor&, int) override { reject(); }
  Work recv(Tensor&, int) override { reject(); }
  void barrier() override { reject(); }
  std::unique_ptr<Communicator> split(int, int) override { reject(); }
  void abort(int) noexcept override {}

 private:
  [[noreturn]] static void reject() { fail(ExitCode::Internal, "communication on the meta device"); }

  int size_;
};

/// Limits below which all bytes kept per weight and per token of all microbatches in flight fit in 64 bits; no host
/// has that much memory.
const double kMaxWeights = std::exp2(56), kMaxActivations = std::exp2(53);

/// Upper estimate of the number of weights.
double estimate_weight_count(const ModelConfig& c) {
  const auto real = [](i64 value) { return static_cast<double>(value); };
  const double width = real(c.hidden_size), heads = real(c.num_attention_heads.max()) * real(c.head_dim());
  const double experts = real(c.moe.num_experts) * real(c.moe_ffn()) + real(c.moe.shared_expert_intermediate_size);
  const double layer = width * (4 * heads + 3 * std::max(real(c.max_ffn()), experts));
  return real(c.num_layers) * layer + width * (2 * real(c.padded_vocab_size()) + real(c.max_positions()));
}

/// Upper estimate of the number of values kept per token.
double estimate_activation_count(const ModelConfig& c) {
  const auto real = [](i64 value) { return static_cast<double>(value); };
  const double heads = real(c.num_attention_heads.max()) * real(c.head_dim());
  const double mlp = std::max(real(c.max_ffn()), real(c.moe.router_topk) * real(c.moe_ffn()));
  return real(c.num_layers) * (8 * real(c.hidden_size) + 4 * heads + 4 * mlp) + 3 * real(c.padded_vocab_size());
}

}  // namespace

void check_countable(const ModelConfig& config, i64 tokens) {
  const auto check = [](double count, double limit, const auto&... what) {
    if (count > limit)
      fail(ExitCode::OutOfMemory, "not enough memory for this model: ", what..., " are about ", human_count(count),
           " elements, more than any host can hold");
  };
  check(estimate_weight_count(config), kMaxWeights, "weights of model.num_layers = ", config.num_layers,
        ", hidden_size = ", config.hidden_size, ", ffn_hidden_size = ", config.max_ffn(),
        ", num_experts = ", config.moe.num_experts);
  check(static_cast<double>(tokens) * estimate_activation_count(config), kMaxActivations,
        "activations of a microbatch of ", tokens, " tokens in ", config.num_layers, " layers");
}

MetaModelContext::MetaModelContext(i64 tensor_parallel)
    : device_(std::make_unique<MetaDevice>()),
      tp_(std::make_unique<MetaCommunicator>(static_cast<int>(tensor_parallel))) {}

MetaModelContext::~MetaModelContext() = default;

ModelContext MetaModelContext::context(const ModelConfig& config) {
  check_countable(config);
  return {.config = config, .recompute = {}, .device = *device_, .tp = *tp_};
}

void visit_meta_params(const ModelConfig& config, const std::function<void(const Param&)>& f) {
  MetaModelContext meta;
  const ModelContext context = meta.context(config);
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

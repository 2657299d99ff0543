#include "parallel/dp/buffer.h"

#include <set>
#include <string_view>

#include "parallel/dp/replicated.h"

namespace mcpp {
namespace {

std::vector<ParamMeta> metas(std::span<const UnitParam> params) {
  std::vector<ParamMeta> result;
  std::set<std::string_view> names;
  for (const auto& [param, unit] : params) {
    MCPP_CHECK(names.insert(param->name).second, param->name, " is listed twice");
    result.push_back({param->name, param->numel(), unit, param->decays()});
  }
  return result;
}

}  // namespace

ParamAndGradBuffer::ParamAndGradBuffer(std::span<const UnitParam> params, DType dtype, Device& device, Communicator& dp,
                                       i64 bucket_elements)
    : dtype_(dtype), device_(device), dp_(dp), plan_(plan_buffer(metas(params), dp.size(), bucket_elements)) {
  for (const UnitParam& p : params) params_.push_back(p.param);
}

void ParamAndGradBuffer::clear_grads() {
  for (Param* param : params_) param->clear_grad();
  begin_step();
}

std::unique_ptr<ParamAndGradBuffer> make_param_and_grad_buffer(std::span<const UnitParam> params, DType dtype,
                                                               Device& device, Communicator& dp, int zero_stage,
                                                               i64 bucket_elements) {
  check_input(zero_stage == 0, "ZeRO stage ", zero_stage, " does not exist here; use 0");
  return std::make_unique<ReplicatedBuffer>(params, dtype, device, dp, bucket_elements);
}

}  // namespace mcpp

// Keys with one value or a list of values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/config/config.h"
#include "tests/support/errors.h"

namespace mcpp::one_or_list_test {
namespace {

using testing::HasSubstr;

Config parse(const std::vector<std::string>& options) {
  return parse_config("[model]\nvocab_size = 100\nnum_experts = 4\n[training]\ntrain_iters = 10\n", "run.toml",
                      options);
}
std::string error_of(const std::string& option) {
  return test::input_error([&] { parse({option}); });
}

TEST(OneOrListTest, AcceptsOneValue) {
  const Config c = parse({"--model.moe_router_load_balancing_type=seq_aux_loss", "--model.moe_aux_loss_coeff=0.5"});
  EXPECT_EQ(c.model.moe.router_load_balancing_type, OneOrList(LoadBalancing::SeqAuxLoss));
  EXPECT_THAT(print_config(c), HasSubstr("moe_router_load_balancing_type = \"seq_aux_loss\"\n"));
}

TEST(OneOrListTest, AcceptsAndPrintsLists) {
  const Config c =
      parse({"--model.moe_router_load_balancing_type=aux_loss,seq_aux_loss", "--model.moe_aux_loss_coeff=[0.5, 0.25]"});
  EXPECT_EQ(c.model.moe.aux_loss_coeff_of(LoadBalancing::SeqAuxLoss), 0.25);
  const std::string printed = print_config(c);
  EXPECT_THAT(printed, HasSubstr("moe_router_load_balancing_type = [\"aux_loss\", \"seq_aux_loss\"]\n"));
  EXPECT_THAT(printed, HasSubstr("moe_aux_loss_coeff = [0.5, 0.25]\n"));
  EXPECT_EQ(print_config(parse_config(printed, "printed.toml", {})), printed);
}

TEST(OneOrListTest, RejectsInvalidElements) {
  constexpr const char* kTypes = R"("aux_loss", "seq_aux_loss", "global_aux_loss", "none")";
  EXPECT_THAT(error_of("--model.moe_router_load_balancing_type=aux"),
              HasSubstr(str("must be one of ", kTypes, ", or a list of them, not \"aux\"")));
  EXPECT_THAT(error_of("--model.moe_router_load_balancing_type=aux_loss,aux"),
              HasSubstr(str("element 2 must be one of ", kTypes, ", not \"aux\"")));
  EXPECT_THAT(error_of("--model.moe_aux_loss_coeff=[]"), HasSubstr("must have a value, or a list"));
  EXPECT_THAT(error_of("--model.moe_aux_loss_coeff=0.1,-1"), HasSubstr("element 2 must be at least 0"));
  EXPECT_THAT(error_of("--model.num_query_groups=4,x"), HasSubstr("element 2 must be an integer, not"));
  EXPECT_THAT(error_of("--model.num_query_groups=x"), HasSubstr("must be an integer or a list of integers, not"));
}

}  // namespace
}  // namespace mcpp::one_or_list_test

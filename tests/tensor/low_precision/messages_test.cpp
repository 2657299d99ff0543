// Compressed messages of both formats: packing, unpacking and summing on each device against the definition.
#include "tensor/ops/low_precision/pack.h"
#include "tests/support/ops.h"
#include "tests/support/packed.h"

namespace mcpp {
namespace {

using test::Numbers;

struct Case {
  DType type;
  i64 count;  ///< elements in a message
};
constexpr Case kCases[]{{DType::I32, 64},  {DType::I32, 192}, {DType::I32, 9600},
                        {DType::BF16, 64}, {DType::BF16, 37}, {DType::BF16, 9001}};

class CompressedMessageOpsTest : public test::Ops {
 protected:
  Tensor allocate_message(DType type, i64 count, Device& device) const {
    return Tensor::empty({target().first + count}, type, device).flat(target().first, count);
  }
  /// Returns the values that the receiver unpacks; they are rounded to fp32 first.
  static std::vector<float> received_values(DType type, const Numbers& x) {
    std::vector<float> values;
    for (const double number : x) values.push_back(static_cast<float>(number));
    return type == DType::I32 ? test::packed_and_back(values) : test::rounded_to_bf16(values);
  }
};

TEST_P(CompressedMessageOpsTest, PackAndUnpackMatchDefinition) {
  for (const Case& c : kCases) {
    const Numbers x = normals(c.count, 3, 5);
    const std::vector<Tensor> outputs = run([&](Device& device) {
      Tensor message = allocate_message(c.type, message_elements(c.type, c.count), device);
      Tensor back = garbage({c.count}, dtype(), device);
      ops::pack(tensor_of(x, {c.count}, dtype(), device), message);
      ops::unpack(message, back);
      return std::vector<Tensor>{message, back};
    });
    Numbers expected;
    for (const float number : received_values(c.type, x)) expected.push_back(test::rounded(number, dtype()));
    EXPECT_EQ(test::to_doubles(outputs[1]), expected) << c.count << " " << name_of(c.type);
  }
}

/// Sums from the first message to the last in the accumulate type, so that results are bitwise identical everywhere.
TEST_P(CompressedMessageOpsTest, AreSummedInOrder) {
  for (const Case& c : kCases) {
    for (const i64 messages : {1, 2, 5}) {
      const Numbers x = normals(messages * c.count, 7, 5);
      const std::vector<Tensor> outputs = run([&](Device& device) {
        Tensor all = allocate_message(c.type, messages * message_elements(c.type, c.count), device);
        ops::pack(tensor_of(x, {messages * c.count}, dtype(), device), all);
        Tensor sum = garbage({c.count}, accumulate_dtype(), device);
        ops::sum_unpacked(all, sum);
        return std::vector<Tensor>{sum};
      });
      const std::vector<float> parts = received_values(c.type, x);
      const auto each = static_cast<std::size_t>(c.count);
      Numbers expected;
      for (std::size_t i = 0; i < each; ++i) {
        double sum = parts[i];
        for (std::size_t at = i + each; at < parts.size(); at += each)
          sum = test::rounded(sum + parts[at], accumulate_dtype());
        expected.push_back(sum);
      }
      EXPECT_EQ(test::to_doubles(outputs[0]), expected) << messages << " of " << c.count << " " << name_of(c.type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CompressedMessageOpsTest, test::every_type(), test::ops_name);

}  // namespace
}  // namespace mcpp

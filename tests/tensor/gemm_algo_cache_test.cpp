#include "tensor/gemm_algo_cache.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

GemmAlgoCache example() {
  return {{{DType::BF16, DType::F32, false, true, false, true, 50304, 768, 8192, 16},
           {{0x1f, 0, ~u64{0}, 3, 4, 5, 6, 0x8000000000000000}, 33554432}},
          {{DType::F64, DType::F64, false, false, true, false, 1, 2, 3, 8}, {{1, 2, 3, 4, 5, 6, 7, 8}, 0}}};
}

TEST(GemmAlgoCacheTest, RoundTripsThroughText) {
  const GemmAlgoCache choices = example();
  const std::string text = to_text(choices, "H200, 130100");
  EXPECT_EQ(gemm_choices_from_text(text, "H200, 130100", "file"), choices);
  EXPECT_EQ(gemm_choices_from_text(to_text(GemmAlgoCache{}, "H200"), "H200", "file"), GemmAlgoCache{});
}

TEST(GemmAlgoCacheTest, KeysAreReadable) {
  EXPECT_EQ(to_text(example().begin()->first), "bf16 fp32 TN 50304 768 8192 add 16");
  EXPECT_EQ(to_text(example().rbegin()->first), "fp64 fp64 NT 1 2 3 set 8");
  EXPECT_EQ(to_text(GemmKey{.tf32 = true, .m = 1, .n = 2, .k = 3, .alignment = 16}), "tf32 fp32 NN 1 2 3 set 16");
}

TEST(GemmAlgoCacheTest, DistinguishesTf32FromFp32) {
  const GemmKey fp32{.m = 1, .n = 2, .k = 3, .alignment = 16};
  GemmKey tf32 = fp32;
  tf32.tf32 = true;
  const GemmAlgoCache choices{{fp32, {{1}, 10}}, {tf32, {{2}, 20}}};
  EXPECT_EQ(choices.size(), 2u);
  EXPECT_EQ(gemm_choices_from_text(to_text(choices, "gpu"), "gpu", "file"), choices);
}

TEST(GemmAlgoCacheTest, DistinguishesFp8FromBf16) {
  GemmAlgoCache choices;
  for (const GemmFp8 fp8 : {GemmFp8::None, GemmFp8::E4m3, GemmFp8::E5m2}) {
    const GemmKey key{.in = DType::BF16, .transpose_b = true, .m = 16, .n = 32, .k = 48, .alignment = 16, .fp8 = fp8};
    choices[key] = {{static_cast<u64>(fp8)}, 10};
  }
  EXPECT_EQ(choices.size(), 3u);
  EXPECT_EQ(to_text(choices.rbegin()->first), "e5m2 fp32 NT 16 32 48 set 16");
  EXPECT_EQ(gemm_choices_from_text(to_text(choices, "gpu"), "gpu", "file"), choices);
}

TEST(GemmAlgoCacheTest, DistinguishesScalesOfBlocks) {
  GemmAlgoCache choices;
  for (const GemmBlocks blocks :
       {GemmBlocks::None, GemmBlocks::Blockwise, GemmBlocks::BlockwiseVectors, GemmBlocks::Mxfp8, GemmBlocks::Nvfp4}) {
    for (const GemmFp8 fp8 : {GemmFp8::E4m3, GemmFp8::E5m2}) {
      GemmKey key{.in = DType::BF16, .transpose_b = true, .m = 16, .n = 32, .k = 48, .alignment = 16, .blocks = blocks};
      if (blocks != GemmBlocks::Nvfp4) key.fp8 = fp8;
      choices[key] = {{static_cast<u64>(blocks)}, 10};
    }
  }
  EXPECT_EQ(choices.size(), 9u);
  EXPECT_EQ(gemm_choices_from_text(to_text(choices, "gpu"), "gpu", "file"), choices);
  const GemmKey vectors{.in = DType::BF16, .fp8 = GemmFp8::E5m2, .blocks = GemmBlocks::BlockwiseVectors};
  EXPECT_TRUE(to_text(vectors).starts_with("blockwise_vectors e5m2 fp32 "));
  EXPECT_TRUE(to_text(GemmKey{.in = DType::BF16, .blocks = GemmBlocks::Nvfp4}).starts_with("nvfp4 fp32 "));
}

TEST(GemmAlgoCacheTest, DistinguishesEpiloguesFromPlainGemms) {
  GemmAlgoCache choices;
  for (const GemmEpilogue epilogue :
       {GemmEpilogue::None, GemmEpilogue::Gelu, GemmEpilogue::BiasGelu, GemmEpilogue::GeluGradient}) {
    const GemmKey key{.in = DType::BF16, .m = 16, .n = 32, .k = 48, .alignment = 16, .epilogue = epilogue};
    choices[key] = {{static_cast<u64>(epilogue)}, 10};
  }
  EXPECT_EQ(choices.size(), 4u);
  EXPECT_EQ(to_text(choices.rbegin()->first), "bf16 fp32 NN 16 32 48 set 16 dgelu");
  EXPECT_EQ(gemm_choices_from_text(to_text(choices, "gpu"), "gpu", "file"), choices);
}

TEST(GemmAlgoCacheTest, GroupedKeysFitAnyNumberOfRows) {
  const GemmKey rows{.transpose_b = true, .n = 768, .k = 2048, .alignment = 16},
      gradient{.transpose_a = true, .accumulate = true, .m = 2048, .n = 768, .alignment = 16};
  EXPECT_EQ(to_text(rows), "fp32 fp32 NT 0 768 2048 set 16");
  const GemmAlgoCache choices{{rows, {{1}, 0}}, {gradient, {{2}, 0}}};
  EXPECT_EQ(gemm_choices_from_text(to_text(choices, "gpu"), "gpu", "file"), choices);
}

TEST(GemmAlgoCacheTest, MergeKeepsChoiceOfLowestRank) {
  const auto key = [](i64 m) { return GemmKey{.m = m, .n = 2, .k = 3, .alignment = 16}; };
  const std::array<std::string, 4> texts{to_text(GemmAlgoCache{{key(1), {{1}, 1}}, {key(2), {{1}, 1}}}, "gpu"),
                                         to_text(GemmAlgoCache{}, "gpu"),
                                         to_text(GemmAlgoCache{{key(4), {{9}, 9}}}, "other"),
                                         to_text(GemmAlgoCache{{key(2), {{3}, 3}}, {key(3), {{3}, 3}}}, "gpu")};
  const GemmAlgoCache merged{{key(1), {{1}, 1}}, {key(2), {{1}, 1}}, {key(3), {{3}, 3}}};
  EXPECT_EQ(merged_gemm_choices(texts, "gpu", "ranks"), merged);
  EXPECT_TRUE(merged_gemm_choices({}, "gpu", "ranks").empty());
}

TEST(GemmAlgoCacheTest, KeysDifferInEveryField) {
  const GemmKey key{DType::BF16, DType::BF16, false, false, false, false, 4, 5, 6, 16};
  std::map<GemmKey, int> keys{{key, 0}};
  const auto add = [&](auto change) {
    GemmKey other = key;
    change(other);
    return keys.emplace(other, 0).second;
  };
  EXPECT_TRUE(add([](GemmKey& k) { k.in = DType::F32; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.out = DType::F32; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.tf32 = true; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.transpose_a = true; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.transpose_b = true; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.accumulate = true; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.m = 1; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.n = 1; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.k = 1; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.alignment = 2; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.fp8 = GemmFp8::E4m3; }));
  EXPECT_TRUE(add([](GemmKey& k) { k.blocks = GemmBlocks::Nvfp4; }));
  EXPECT_FALSE(add([](GemmKey&) {}));
}

TEST(GemmAlgoCacheTest, IgnoresChoicesOfOtherPlatforms) {
  EXPECT_TRUE(gemm_choices_from_text(to_text(example(), "H100, 130100"), "H200, 130100", "file").empty());
}

TEST(GemmAlgoCacheTest, RejectsMalformedText) {
  const std::string header = to_text(GemmAlgoCache{}, "gpu");
  const std::string good = "bf16 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7 8";
  EXPECT_EQ(gemm_choices_from_text(header + good + "\n", "gpu", "file").size(), 1u);
  for (const char* bad :
       {"", "bf16", "int32 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7 8", "bf16 fp32 TX 5 6 7 add 16 0 1 2 3 4 5 6 7 8",
        "bf16 fp32 TN -5 6 7 add 16 0 1 2 3 4 5 6 7 8", "bf16 fp32 TN 5 6 7 sub 16 0 1 2 3 4 5 6 7 8",
        "mxfp8 bf16 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7 8", "nvfp4 e4m3 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7 8",
        "bf16 fp32 TN 5 6 7 add 12 0 1 2 3 4 5 6 7 8", "bf16 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7",
        "bf16 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7 8 9", "bf16 fp32 TN 5 6 7 add 16 0 1 2 3 4 5 6 7 x"}) {
    try {
      gemm_choices_from_text(header + good + "\n" + bad + "\n", "gpu", "choices.txt");
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::BadInput);
      EXPECT_NE(std::string(e.what()).find("choices.txt, line 3"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(gemm_choices_from_text("", "gpu", "file"), Error);
  EXPECT_THROW(gemm_choices_from_text("something else\n", "gpu", "file"), Error);
}

TEST(GemmAlgoCacheTest, AlignmentIsLimitedByLeastAlignedAddress) {
  const auto at = [](u64 address) { return reinterpret_cast<const char*>(address); };
  EXPECT_EQ(gemm_alignment(at(64), at(128), at(4096)), 16);
  EXPECT_EQ(gemm_alignment(at(64), at(136), at(4096)), 8);
  EXPECT_EQ(gemm_alignment(at(66), at(136), at(4096)), 2);
}

}  // namespace
}  // namespace mcpp

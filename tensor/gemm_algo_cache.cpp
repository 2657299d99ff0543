#include "tensor/gemm_algo_cache.h"

#include <bit>
#include <sstream>

namespace mcpp {
namespace {

constexpr std::string_view kHeader = "megatron_cpp matrix products 1: ";
constexpr std::string_view kTf32 = "tf32", kE4m3 = "e4m3", kE5m2 = "e5m2";
constexpr std::array<std::string_view, 4> kEpilogues{"", "gelu", "bias+gelu", "dgelu"};  // indexed by GemmEpilogue
/// Indexed by GemmBlocks.
constexpr std::array<std::string_view, 5> kBlocks{"", "blockwise", "blockwise_vectors", "mxfp8", "nvfp4"};

/// Parser of the words of one line; throws if a word is missing or invalid.
class LineParser {
 public:
  explicit LineParser(const std::string& line) : in_(line) {}

  bool is_valid() const { return is_valid_; }
  bool done() {
    std::string excess;
    return is_valid_ && !(in_ >> excess);
  }
  std::string word() {
    std::string w;
    require(static_cast<bool>(in_ >> w));
    return w;
  }
  /// Consumes the next word if it equals `expected`.
  bool next_is(std::string_view expected) {
    const auto word_start = in_.tellg();
    std::string w;
    if (in_ >> w && w == expected) return true;
    in_.clear();
    in_.seekg(word_start);
    return false;
  }
  i64 size() {
    i64 n = 0;
    require(static_cast<bool>(in_ >> std::dec >> n) && n >= 0);
    return n;
  }
  u64 bits() {
    u64 n = 0;
    require(static_cast<bool>(in_ >> std::hex >> n));
    return n;
  }
  DType type() {
    const std::string w = word();
    for (DType t : {DType::F32, DType::BF16, DType::F16, DType::F64})
      if (w == name_of(t)) return t;
    require(false);
    return DType::F32;
  }
  /// Returns true if the next word is `yes`, false if it is `no`; otherwise throws.
  bool parse_flag(std::string_view yes, std::string_view no) {
    const std::string w = word();
    require(w == yes || w == no);
    return w == yes;
  }
  void require(bool condition) { is_valid_ = is_valid_ && condition; }

 private:
  std::istringstream in_;
  bool is_valid_ = true;
};

void read_factors(LineParser& words, GemmKey& key) {
  key.tf32 = words.next_is(kTf32);
  if (key.tf32) return;
  for (std::size_t b = 1; b < kBlocks.size(); ++b) {
    if (words.next_is(kBlocks[b])) key.blocks = static_cast<GemmBlocks>(b);
  }
  key.in = DType::BF16;
  if (key.blocks == GemmBlocks::Nvfp4) return;
  key.fp8 = words.next_is(kE4m3) ? GemmFp8::E4m3 : words.next_is(kE5m2) ? GemmFp8::E5m2 : GemmFp8::None;
  words.require(key.blocks == GemmBlocks::None || key.fp8 != GemmFp8::None);
  if (key.fp8 == GemmFp8::None) key.in = words.type();
}

std::string name_of_factors(const GemmKey& key) {
  const std::string_view blocks = kBlocks[static_cast<std::size_t>(key.blocks)];
  if (key.blocks == GemmBlocks::Nvfp4) return std::string(blocks);
  if (key.fp8 != GemmFp8::None) return str(blocks, blocks.empty() ? "" : " ", key.fp8 == GemmFp8::E4m3 ? kE4m3 : kE5m2);
  return std::string(key.tf32 ? kTf32 : name_of(key.in));
}

GemmKey read_key(LineParser& words) {
  GemmKey key;
  read_factors(words, key);
  key.out = words.type();
  const std::string transposes = words.word();
  words.require(transposes == "NN" || transposes == "NT" || transposes == "TN" || transposes == "TT");
  if (!words.is_valid()) return key;
  key.transpose_a = transposes[0] == 'T';
  key.transpose_b = transposes[1] == 'T';
  key.m = words.size();
  key.n = words.size();
  key.k = words.size();
  key.accumulate = words.parse_flag("add", "set");
  key.alignment = words.size();
  words.require(std::has_single_bit(static_cast<u64>(key.alignment)));
  for (std::size_t e = 1; e < kEpilogues.size(); ++e) {
    if (words.next_is(kEpilogues[e])) key.epilogue = static_cast<GemmEpilogue>(e);
  }
  return key;
}

GemmAlgo read_choice(LineParser& words) {
  GemmAlgo choice;
  choice.workspace = words.size();
  for (u64& part : choice.algorithm) part = words.bits();
  return choice;
}

}  // namespace

std::string to_text(const GemmKey& key) {
  return str(name_of_factors(key), ' ', name_of(key.out), ' ', key.transpose_a ? 'T' : 'N', key.transpose_b ? 'T' : 'N',
             ' ', key.m, ' ', key.n, ' ', key.k, key.accumulate ? " add " : " set ", key.alignment,
             key.epilogue == GemmEpilogue::None ? "" : " ", kEpilogues[static_cast<std::size_t>(key.epilogue)]);
}

std::string to_text(const GemmAlgoCache& choices, std::string_view platform) {
  std::ostringstream out;
  out << kHeader << platform << '\n';
  for (const auto& [key, choice] : choices) {
    out << to_text(key) << ' ' << std::dec << choice.workspace << std::hex;
    for (u64 part : choice.algorithm) out << ' ' << part;
    out << '\n';
  }
  return std::move(out).str();
}

GemmAlgoCache gemm_choices_from_text(std::string_view text, std::string_view platform, std::string_view name) {
  std::istringstream in{std::string(text)};
  std::string line;
  check_input(std::getline(in, line) && line.starts_with(kHeader), name, ": not a list of GEMM algorithms");
  if (line.substr(kHeader.size()) != platform) return {};
  GemmAlgoCache choices;
  for (i64 number = 2; std::getline(in, line); ++number) {
    LineParser words(line);
    const GemmKey key = read_key(words);
    const GemmAlgo choice = read_choice(words);
    check_input(words.done(), name, ", line ", number, ": not a GEMM and its algorithm: ", line,
                "; delete the file; the next run creates it");
    choices[key] = choice;
  }
  return choices;
}

GemmAlgoCache merged_gemm_choices(std::span<const std::string> texts, std::string_view platform,
                                  std::string_view name) {
  GemmAlgoCache merged;
  for (const std::string& text : texts) {
    GemmAlgoCache more = gemm_choices_from_text(text, platform, name);
    merged.merge(more);
  }
  return merged;
}

}  // namespace mcpp

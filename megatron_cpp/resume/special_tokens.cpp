#include "megatron_cpp/resume/special_tokens.h"

#include <limits>

#include "base/check.h"
#include "base/json.h"

namespace mcpp {
namespace {

constexpr const char* kExtra = "special_tokens";
constexpr std::size_t kMaxStopTokens = 1000;

std::optional<i64> optional_id(const JsonObject& json, const char* key) {
  return json.find(key) ? std::optional(json.integer(key, 0, std::numeric_limits<i32>::max())) : std::nullopt;
}

OrderedJson id_or_null(std::optional<i64> id) {
  return id ? OrderedJson(*id) : OrderedJson();
}

}  // namespace

std::vector<i32> SpecialTokens::stop_tokens(const Tokenizer& tokenizer) const {
  if (stop.empty()) return {text_end(tokenizer)};
  return {stop.begin(), stop.end()};
}

void SpecialTokens::add_bos(std::vector<i32>& tokens) const {
  if (!adds_bos || !bos) return;
  const auto id = static_cast<i32>(*bos);
  if (tokens.empty() || tokens.front() != id) tokens.insert(tokens.begin(), id);
}

void store_special_tokens(const SpecialTokens& tokens, RunState& run) {
  if (!tokens.is_stated()) return;
  const OrderedJson json{{"bos", id_or_null(tokens.bos)},
                         {"eos", id_or_null(tokens.eos)},
                         {"stop", tokens.stop},
                         {"adds_bos", tokens.adds_bos},
                         {"files", tokens.files}};
  run.extra[kExtra] = json.dump();
}

SpecialTokens read_special_tokens(const RunState& run, const std::string& source) {
  const auto it = run.extra.find(kExtra);
  if (it == run.extra.end()) return {};
  const std::string name = str(source, ": ", kExtra);
  const Json parsed = parse_json(it->second, name);
  const JsonObject json(parsed, name);
  SpecialTokens tokens{.bos = optional_id(json, "bos"),
                       .eos = optional_id(json, "eos"),
                       .stop = json.integers("stop", kMaxStopTokens),
                       .adds_bos = json.boolean("adds_bos")};
  for (const i64 id : tokens.stop)
    check_input(id >= 0 && id <= std::numeric_limits<i32>::max(), name, ": 'stop' has the id ", id);
  check_input(tokens.bos || !tokens.adds_bos, name, ": 'adds_bos' is true, but 'bos' is missing");
  const JsonObject files = json.object("files");
  for (const auto& member : files.json().items()) tokens.files[member.key()] = files.text(member.key());
  return tokens;
}

}  // namespace mcpp

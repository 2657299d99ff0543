#include "megatron_cpp/inference/evaluation/evaluation_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

/// Formats columns two spaces apart, the first left-aligned, the others right-aligned.
std::string table(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const Row& other : rows) width = std::max(width, other[column].size());
      if (column > 0) line += "  ";
      line += column == 0 ? pad_right(row[column], width) : pad_left(row[column], width);
    }
    text.append("\n").append(line, 0, line.find_last_not_of(' ') + 1);
  }
  return text;
}

/// Returns the number of digits that agree on every layout: ranks that share a layer round sums in a different order.
int digits_of(DType type) {
  return type == DType::F32 || type == DType::F64 ? 6 : 4;
}

std::string perplexity_text(const Perplexity& p, int digits) {
  const auto format = [&](double value) { return significant(value, digits); };
  std::string text = str("\ntokens               ", p.tokens, "\nloss per token       ", format(p.loss()),
                         "\ntoken perplexity     ", format(p.token_perplexity()));
  if (p.words > 0)
    text += str("\nwords                ", p.words, "\nword perplexity      ", format(p.word_perplexity()));
  if (p.bytes > 0) {
    text += str("\nbytes                ", p.bytes, "\nbyte perplexity      ", format(p.byte_perplexity()),
                "\nbits per byte        ", format(p.bits_per_byte()));
  }
  return text;
}

Row row_of(const TextResult& text, int digits) {
  const Perplexity& p = text.perplexity;
  const auto format = [&](double value) { return significant(value, digits); };
  return {text.name,
          str(p.tokens),
          format(p.loss()),
          format(p.token_perplexity()),
          p.words > 0 ? format(p.word_perplexity()) : "",
          p.bytes > 0 ? format(p.byte_perplexity()) : "",
          p.bytes > 0 ? format(p.bits_per_byte()) : ""};
}

void add_numbers(const Perplexity& p, Json& json) {
  json.update({{"tokens", p.tokens}, {"nll", p.nll}, {"loss", p.loss()}, {"token_perplexity", p.token_perplexity()}});
  if (p.words > 0) json.update({{"words", p.words}, {"word_perplexity", p.word_perplexity()}});
  if (p.bytes > 0) {
    json.update({{"bytes", p.bytes}, {"byte_perplexity", p.byte_perplexity()}, {"bits_per_byte", p.bits_per_byte()}});
  }
}

Json json_of(const TaskResult& result) {
  Json json{{"task", result.task.name}, {"file", result.task.file.string()}, {"items", result.task.items.size()}};
  for (const TaskMetric& metric : result.scores.metrics) {
    json[metric.name] = metric.value;
    json[metric.name + "_stderr"] = metric.standard_error ? Json(*metric.standard_error) : Json();
  }
  return json;
}

}  // namespace

std::string EvaluationReport::as_text() const {
  std::string text = str("checkpoint           ", checkpoint.string());
  if (is_one_text()) return text + perplexity_text(texts[0].perplexity, digits_of(dtype));
  if (!texts.empty()) {
    std::vector<Row> rows{{"text", "tokens", "loss per token", "token perplexity", "word perplexity", "byte perplexity",
                           "bits per byte"}};
    for (const TextResult& result : texts) rows.push_back(row_of(result, digits_of(dtype)));
    text.append("\n").append(table(rows));
  }
  if (!tasks.empty()) {
    std::vector<Row> rows{{"task", "items", "metric", "value", "stderr"}};
    for (const TaskResult& result : tasks) {
      for (const TaskMetric& metric : result.scores.metrics) {
        rows.push_back({result.task.name, str(result.task.items.size()), metric.name, fixed(metric.value, 4),
                        metric.standard_error ? fixed(*metric.standard_error, 4) : ""});
      }
    }
    text.append("\n").append(table(rows));
  }
  return text;
}

std::string EvaluationReport::as_json() const {
  Json json{{"checkpoint", checkpoint.string()}};
  if (is_one_text()) {
    add_numbers(texts[0].perplexity, json);
    return json.dump();
  }
  for (const TextResult& result : texts) {
    Json text{{"text", result.name}};
    add_numbers(result.perplexity, text);
    json["texts"].push_back(std::move(text));
  }
  for (const TaskResult& result : tasks) json["tasks"].push_back(json_of(result));
  return json.dump();
}

}  // namespace mcpp

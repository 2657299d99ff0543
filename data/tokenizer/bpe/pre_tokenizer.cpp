#include "data/tokenizer/bpe/pre_tokenizer.h"

#include <algorithm>

namespace mcpp {
namespace {

struct Span {
  std::size_t begin, end;
  bool is_match;
};

/// Splits `text` at all matches and between them.
std::vector<Span> spans_of(const Regex& pattern, bool invert, std::string_view text, RegexMemory& memory) {
  std::vector<Span> spans;
  RegexMatches matches(pattern, text, memory);
  std::size_t done = 0;
  while (const auto match = matches.next()) {
    if (done < match->begin) spans.push_back({done, match->begin, invert});
    spans.push_back({match->begin, match->end, !invert});
    done = match->end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), invert});
  return spans;
}

/// Joins spans that the behavior keeps together, in order.
std::vector<Span> joined(const std::vector<Span>& spans, SplitBehavior behavior) {
  std::vector<Span> parts;
  bool was_match = false;
  for (const Span& span : spans) {
    const bool is_joined =
        behavior == SplitBehavior::Contiguous ? span.is_match == was_match : span.is_match && !was_match;
    was_match = span.is_match;
    if (is_joined && !parts.empty())
      parts.back().end = span.end;
    else
      parts.push_back(span);
  }
  return parts;
}

/// Joins spans for MergedWithNext, from last to first.
std::vector<Span> joined_with_next(const std::vector<Span>& spans) {
  std::vector<Span> parts;
  bool was_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->is_match && !was_match && !parts.empty())
      parts.back().begin = span->begin;
    else
      parts.push_back(*span);
    was_match = span->is_match;
  }
  std::ranges::reverse(parts);
  return parts;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& source) {
  for (const PreTokenizerStep& step : steps) {
    if (const auto* split = std::get_if<SplitStep>(&step))
      steps_.emplace_back(Split{Regex(split->pattern, source), split->behavior, split->invert});
    else if (const auto* prefix = std::get_if<PrefixStep>(&step))
      steps_.emplace_back(*prefix);
    else
      steps_.emplace_back(std::get<MarkStep>(step));
  }
}

void PreTokenizer::split(std::string_view text, SegmentStart start, RegexMemory& memory, WordSink& sink) const {
  apply(0, text, start, {memory, sink});
}

void PreTokenizer::apply(std::size_t step, std::string_view part, SegmentStart start, const Call& call) const {
  if (part.empty()) return;
  if (step == steps_.size()) return call.sink.add_word(part);
  if (const auto* split = std::get_if<Split>(&steps_[step])) {
    const bool isolates = split->behavior == SplitBehavior::Isolated;  // for which it is irrelevant what matched
    return isolates ? isolate(step, part, start, call) : split_otherwise(step, part, start, call);
  }
  if (const auto* prefix = std::get_if<PrefixStep>(&steps_[step])) {
    if (part.starts_with(prefix->text) || start == SegmentStart::Continued ||
        (prefix->is_at_text_begin_only && start != SegmentStart::Document))
      return apply(step + 1, part, start, call);
    return apply(step + 1, prefix->text + std::string(part), start, call);
  }
  const auto& mark = std::get<MarkStep>(steps_[step]);
  std::string marked;
  for (std::size_t at = 0; at < part.size();) {
    const std::size_t next = std::min(part.find(mark.from, at), part.size());
    marked += part.substr(at, next - at);
    if (next < part.size()) marked += mark.content;
    at = next + mark.from.size();
  }
  apply(step + 1, marked, start, call);
}

void PreTokenizer::isolate(std::size_t step, std::string_view part, SegmentStart start, const Call& call) const {
  RegexMatches matches(std::get<Split>(steps_[step]).pattern, part, call.memory);
  std::size_t done = 0;
  const auto add_piece = [&](std::size_t begin, std::size_t end) {
    apply(step + 1, part.substr(begin, end - begin), begin == 0 ? start : SegmentStart::Split, call);
  };
  while (const auto match = matches.next()) {
    add_piece(done, match->begin);
    add_piece(match->begin, match->end);
    done = match->end;
  }
  add_piece(done, part.size());
}

void PreTokenizer::split_otherwise(std::size_t step, std::string_view part, SegmentStart start,
                                   const Call& call) const {
  const auto& split = std::get<Split>(steps_[step]);
  std::vector<Span> spans = spans_of(split.pattern, split.invert, part, call.memory);
  if (split.behavior == SplitBehavior::Removed)
    std::erase_if(spans, [](const Span& span) { return span.is_match; });
  else
    spans = split.behavior == SplitBehavior::MergedWithNext ? joined_with_next(spans) : joined(spans, split.behavior);
  for (const Span& span : spans)
    apply(step + 1, part.substr(span.begin, span.end - span.begin), span.begin == 0 ? start : SegmentStart::Split,
          call);
}

}  // namespace mcpp

#include "parallel/stages.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr const char* kFirst = "decoder_first_pipeline_num_layers";
constexpr const char* kLast = "decoder_last_pipeline_num_layers";

i64 count_of(const std::string& text, char letter) {
  return std::count(text.begin(), text.end(), letter);
}

/// Returns true if expanded items of a valid layout have multi-token prediction in a stage without the output.
bool has_separate_mtp(const std::string& items) {
  return items.find("m|L") != std::string::npos;
}

/// Parser that expands the repetitions of a layout string: sequence = { item [ "*" number ] },  item = "E" | "t" | "m"
/// | "L" | "|" | "(" sequence ")".
class LayoutReader {
 public:
  explicit LayoutReader(const std::string& layout) {
    for (const char c : layout)
      if (c != ',' && c != ' ') text_ += c;
    check_input(text_.size() <= kMaxTextLength, "pipeline_model_parallel_layout: longer than ", kMaxTextLength,
                " characters");
  }

  /// Returns letters and borders only. Throws BadInput that names the mistake and its position.
  std::string read() {
    std::string items = sequence();
    require(at_ == text_.size(), "\")\" without its \"(\"");
    return items;
  }

 private:
  // Far above what models need; prevents typing errors from exhausting memory.
  static constexpr std::size_t kMaxTextLength = 10'000, kMaxExpandedLength = 100'000;
  static constexpr int kMaxDepth = 16;

  bool next_is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  void require(bool condition, const std::string& reason) const {
    check_input(condition, "pipeline_model_parallel_layout: ", reason, " after \"", text_.substr(0, at_), "\"");
  }

  std::string sequence() {
    std::string items;
    while (at_ < text_.size() && !next_is(')')) {
      const std::string repeated = item();
      const std::size_t times = next_is('*') ? number() : 1;
      require(items.size() + repeated.size() * times <= kMaxExpandedLength, "too many stages and layers");
      for (std::size_t i = 0; i < times; ++i) items += repeated;
    }
    return items;
  }

  std::string item() {
    const char c = text_[at_];
    if (c != '(') {
      require(std::string_view("EtmL|").find(c) != std::string_view::npos,
              str("\"", c, "\" is not one of E (embedding), t (layer), m (multi-token prediction), L (output), ",
                  "| (border), (...)*n, x*n"));
      ++at_;
      return {c};
    }
    require(++depth_ <= kMaxDepth, str("more than ", kMaxDepth, " nested \"(\""));
    ++at_;
    std::string items = sequence();
    require(next_is(')'), "a \")\" is missing");
    require(!items.empty(), "nothing between \"(\" and \")\"");
    ++at_;
    --depth_;
    return items;
  }

  std::size_t number() {
    ++at_;
    std::size_t times = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), times);
    require(error == std::errc() && times >= 1 && times <= kMaxExpandedLength, "a number of at least 1 is missing");
    at_ += static_cast<std::size_t>(end - begin);
    return times;
  }

  std::string text_;
  std::size_t at_ = 0;
  int depth_ = 0;  // number of open "("
};

/// Validates and computes one split, which is valid if `conflicts` is empty.
class Splitter {
 public:
  Splitter(const Layout& layout, i64 num_layers)
      : layout_(layout), num_layers_(num_layers), stages_(ranks() * chunks()) {
    at_least("num_layers", num_layers, 1);
    at_least("pipeline_model_parallel_size", ranks(), 1);
    at_least("num_virtual_stages_per_pipeline_rank", chunks(), 1);
    at_least(kFirst, first(), 0);
    at_least(kLast, last(), 0);
    if (!conflicts.empty()) return;
    if (!layout.stages.empty())
      apply_layout();
    else if (first() > 0 || last() > 0)
      split_unevenly();
    else
      split_evenly();
  }

  std::vector<std::string> conflicts;
  std::vector<StageContents> contents;

 private:
  i64 ranks() const { return layout_.pp; }
  i64 chunks() const { return layout_.chunks; }
  i64 first() const { return layout_.first_layers; }
  i64 last() const { return layout_.last_layers; }
  /// Formats e.g. "4 x num_virtual_stages_per_pipeline_rank = 8".
  std::string times_chunks(const std::string& what, i64 size) const {
    return chunks() > 1 ? str(what, " x num_virtual_stages_per_pipeline_rank = ", size * chunks())
                        : str(what, " = ", size);
  }

  void add(std::string text) { conflicts.push_back(std::move(text)); }
  void at_least(const char* name, i64 value, i64 min_value) {
    if (value < min_value) add(str(name, " = ", value, " must be at least ", min_value));
  }

  /// Fills the stages in order; layers_of_rank returns the number of layers of each chunk of a rank.
  template <class LayersOfRank>
  void fill_stages(const LayersOfRank& layers_of_rank) {
    if (!conflicts.empty()) return;
    const StageMap pipeline = layout_.stage_map();
    i64 layer = 0;
    for (int stage = 0; stage < pipeline.stages(); ++stage) {
      const i64 begin = layer;
      layer += layers_of_rank(pipeline.rank_of(stage)) / chunks();
      contents.push_back({begin, layer, stage == 0, stage == pipeline.stages() - 1});
    }
  }

  void split_evenly() {
    if (num_layers_ % stages_ != 0) {
      const std::vector<i64> nearest = nearest_multiples(stages_, num_layers_);
      add(str("num_layers = ", num_layers_, " is not a multiple of ",
              times_chunks("pipeline_model_parallel_size", ranks()),
              nearest.size() == 1 ? "; the nearest multiple is " : "; the nearest multiples are ", nearest[0],
              nearest.size() == 1 ? "" : str(" and ", nearest[1]), "; or set ", kFirst, ", ", kLast,
              " or pipeline_model_parallel_layout"));
    }
    fill_stages([&](i64) { return num_layers_ / ranks(); });
  }

  void split_unevenly() {
    if (ranks() == 1)
      return add(str(kFirst, " and ", kLast, " need pipeline_model_parallel_size of at least 2, not 1"));
    for (const auto& [name, layers] : {std::pair(kFirst, first()), std::pair(kLast, last())})
      if (layers % chunks() != 0)
        add(str(name, " = ", layers, " is not a multiple of num_virtual_stages_per_pipeline_rank = ", chunks(),
                "; nearest: ", join_alternatives(nearest_multiples(chunks(), layers))));
    const i64 others = ranks() - (first() > 0) - (last() > 0), rest = num_layers_ - first() - last();
    if (others == 0 ? rest != 0 : rest < others * chunks() || rest % (others * chunks()) != 0)
      add(describe_uneven_rest(others, rest));
    fill_stages([&](i64 rank) {
      if (rank == 0 && first() > 0) return first();
      if (rank == ranks() - 1 && last() > 0) return last();
      return rest / others;
    });
  }

  /// Suggests values of one key (the last one that is set) with which the remaining layers divide evenly.
  std::string describe_uneven_rest(i64 others, i64 rest) const {
    const std::string settings = first() > 0 && last() > 0 ? str(kFirst, " = ", first(), " and ", kLast, " = ", last())
                                 : first() > 0             ? str(kFirst, " = ", first())
                                                           : str(kLast, " = ", last());
    const i64 step = others * chunks(), own = last() > 0 ? last() : first();
    std::vector<i64> suggestions;
    const std::vector<i64> nearest_rests =
        others == 0 ? std::vector<i64>{0} : nearest_multiples(step, std::max<i64>(rest, 1));
    for (const i64 shared : nearest_rests)
      if (const i64 value = own + rest - shared; value > 0 && value % chunks() == 0)
        suggestions.insert(suggestions.begin(), value);
    return str(settings, first() > 0 && last() > 0 ? " leave " : " leaves ", rest, " of num_layers = ", num_layers_,
               " for the ", others, " other pipeline ranks, which must be ",
               others == 0 ? "0" : str("a multiple of ", times_chunks(str(others, " ranks"), others)),
               suggestions.empty()
                   ? ""
                   : str("; nearest ", last() > 0 ? kLast : kFirst, ": ", join_alternatives(suggestions)));
  }

  void apply_layout() {
    if (first() > 0 || last() > 0)
      add(str("pipeline_model_parallel_layout defines all stages; ", kFirst, " and ", kLast, " cannot be set with it"));
    std::string items;
    try {
      items = LayoutReader(layout_.stages).read();
    } catch (const Error& error) {
      return add(error.what());
    }
    check_layout(items);
    if (!conflicts.empty()) return;
    i64 layer = 0;
    for (const std::string& stage : split(items, '|')) {
      const i64 begin = layer;
      layer += count_of(stage, 't');
      contents.push_back({begin, layer, count_of(stage, 'E') > 0, count_of(stage, 'L') > 0});
    }
    contents.back().has_final_norm = !has_separate_mtp(items);
    if (has_separate_mtp(items)) contents[contents.size() - 2].has_final_norm = true;
  }

  void check_layout(const std::string& items) {
    const auto require = [&](bool condition, const std::string& reason) {
      if (!condition) add("pipeline_model_parallel_layout: " + reason);
    };
    require(count_of(items, 'E') == 1 && items.front() == 'E', "it must begin with E, and have no other E");
    require(count_of(items, 'L') == 1 && items.back() == 'L', "it must end with L, and have no other L");
    if (const std::size_t first = items.find('m'), last = items.rfind('m'); first != std::string::npos) {
      const std::string after = items.substr(last);
      require(items.find('t', first) == std::string::npos, "no t (layer) may follow m (multi-token prediction)");
      require(items.substr(first, last - first).find('|') == std::string::npos,
              "every m (multi-token prediction) must be in the same stage");
      require(count_of(after, '|') <= 1,
              "the stage of m (multi-token prediction) must be that of L or directly precede it");
    }
    const i64 layers = count_of(items, 't'), stages = count_of(items, '|') + 1;
    require(layers == num_layers_, str("it has ", layers, " layers (t), but num_layers = ", num_layers_));
    const bool fits_others = stages % ranks() == 0 && stages != stages_;
    require(stages == stages_,
            str("it has ", stages, " stages, but ", times_chunks("pipeline_model_parallel_size", ranks()),
                fits_others ? str("; it fits num_virtual_stages_per_pipeline_rank = ", stages / ranks()) : ""));
  }

  const Layout& layout_;
  i64 num_layers_;
  i64 stages_;
};

}  // namespace

std::vector<StageContents> split_stages(const Layout& layout, i64 num_layers) {
  Splitter splitter(layout, num_layers);
  check_input(splitter.conflicts.empty(), join(splitter.conflicts, "\n"));
  return std::move(splitter.contents);
}

i64 count_mtp_layers(const Layout& layout) {
  return count_of(LayoutReader(layout.stages).read(), 'm');
}

int final_norm_stage(const Layout& layout) {
  return layout.stage_map().stages() - (has_separate_mtp(LayoutReader(layout.stages).read()) ? 2 : 1);
}

int final_norm_rank(const Layout& layout) {
  return layout.stage_map().rank_of(final_norm_stage(layout));
}

std::vector<std::string> stage_conflicts(const Layout& layout, i64 num_layers) {
  return Splitter(layout, num_layers).conflicts;
}

}  // namespace mcpp

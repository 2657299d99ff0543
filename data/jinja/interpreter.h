// Interpreter of Jinja templates, limited to the features that chat templates of language models use.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "data/jinja/syntax_tree.h"

namespace mcpp::jinja {

/// Text that a template produces.
struct Rendering {
  std::string text;
  /// Byte ranges [begin, end) of the text inside {% generation %} blocks, in order.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

/// Parsed template. Const methods are thread-safe.
class Template {
 public:
  /// Default of `max_work`, for conversations of several MiB.
  static constexpr i64 kMaxWork = 2'000'000'000;

  /// `name` begins the messages of errors. Throws BadInput, with the line, for syntax errors and for statements that
  /// are not supported.
  Template(const std::string& source, std::string name);

  /// Renders the template with these variables, in addition to range, namespace, dict and raise_exception. Throws
  /// BadInput, with the line, for functions, filters and tests that are not supported, errors of types, calls of
  /// raise_exception, and templates whose work exceeds `max_work` units of WorkBudget.
  Rendering render(const Dict& variables, i64 max_work = kMaxWork) const;

  const std::string& name() const { return name_; }
  /// Returns true if the template marks the text of the assistant with {% generation %}.
  bool marks_generation() const { return marks_generation_; }

 private:
  std::string name_;
  Block block_;
  bool marks_generation_ = false;
};

}  // namespace mcpp::jinja

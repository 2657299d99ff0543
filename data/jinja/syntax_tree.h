// Syntax trees of templates.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/jinja/value.h"

namespace mcpp::jinja {

enum class ExprKind : u8 {
  Constant,      ///< value
  Name,          ///< text
  ListDisplay,   ///< parts
  TupleDisplay,  ///< parts
  DictDisplay,   ///< parts: key, value, key, value, ...
  Attribute,     ///< parts[0].text
  Subscript,     ///< parts[0][parts[1]]
  Slice,         ///< parts[0][parts[1]:parts[2]:parts[3]], each bound null if absent
  Call,          ///< parts[0](other parts, named)
  Filter,        ///< parts[0] | text(other parts, named)
  Test,          ///< parts[0] is text(other parts, named)
  Unary,         ///< text parts[0]: "not", "-" or "+"
  Binary,        ///< parts[0] text parts[1]: arithmetic, "~", "and" or "or"
  Comparison,    ///< parts[0] names[0] parts[1] names[1] parts[2] ...
  Conditional    ///< parts[0] if parts[1] else parts[2], which may be null
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind{};
  i64 line = 1;
  std::string text = {};
  Value value = {};
  std::vector<ExprPtr> parts = {};
  std::vector<std::pair<std::string, ExprPtr>> named = {};
  std::vector<std::string> names = {};
};

enum class StmtKind : u8 {
  Text,       ///< text
  Output,     ///< value
  If,         ///< value, body, other
  For,        ///< names in value, if condition: body, else other
  Set,        ///< names = value
  SetMember,  ///< names[0].names[1] = value
  SetBlock,   ///< names[0] = text of body, unless the body leaves its loop
  Macro,      ///< text(names, with defaults): body
  Break,      ///< of the innermost loop
  Continue,   ///< of the innermost loop
  Generation  ///< body, which the assistant generates
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct Stmt {
  StmtKind kind{};
  i64 line = 1;
  std::string text = {};
  std::vector<std::string> names = {};
  ExprPtr value = {}, condition = {};
  std::vector<ExprPtr> defaults = {};  ///< by name; null without a default
  Block body = {}, other = {};
};

/// Parses a template. Throws BadInput, with the line, for errors and for statements that are not supported.
Block parse_template(std::string_view source);

}  // namespace mcpp::jinja

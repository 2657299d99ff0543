#include "data/jinja/interpreter.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "data/jinja/builtins.h"

namespace mcpp::jinja {
namespace {

/// Variables of a template, a macro or an iteration of a loop.
struct Scope {
  const Scope* parent = nullptr;
  i64 depth = parent ? parent->depth + 1 : 0;
  std::map<std::string, Value, std::less<>> variables = {};

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope; scope = scope->parent) {
      const auto it = scope->variables.find(name);
      if (it != scope->variables.end()) return &it->second;
    }
    return nullptr;
  }
};

enum class Flow : u8 { Next, Break, Continue };

class Interpreter {
 public:
  explicit Interpreter(i64 max_work) : budget_(max_work) {}
  Flow execute(const Block& block, Scope& scope, Rendering& out);
  i64 line() const { return line_; }

 private:
  /// Counts the levels of nested blocks, expressions and macros.
  class DepthScope {
   public:
    explicit DepthScope(Interpreter& interpreter) : depth_(interpreter.depth_) {
      constexpr i64 kMaxDepth = 1000;
      check_input(++depth_ <= kMaxDepth, "macros call each other too often, or expressions are nested too deeply");
    }
    ~DepthScope() { --depth_; }
    DepthScope(const DepthScope&) = delete;
    DepthScope& operator=(const DepthScope&) = delete;

   private:
    i64& depth_;
  };

  Flow execute(const Stmt& statement, Scope& scope, Rendering& out);
  Flow execute_loop(const Stmt& statement, Scope& scope, Rendering& out);
  void execute_set(const Stmt& statement, Scope& scope);
  Flow execute_set_block(const Stmt& statement, Scope& scope);
  Flow execute_generation(const Stmt& statement, Scope& scope, Rendering& out);
  void define_macro(const Stmt& statement, Scope& scope);
  void bind(const std::vector<std::string>& names, const Value& value, Scope& scope);
  std::string text_of(const Block& block, Scope& scope);
  void append(std::string_view text, Rendering& out);
  void append_value(const Value& value, Rendering& out);
  static Value loop_variable(const List& items, std::size_t index);

  Value evaluate(const Expr& expr, Scope& scope);
  Value evaluate_display(const Expr& expr, Scope& scope);
  Value evaluate_binary(const Expr& expr, Scope& scope);
  Value evaluate_comparison(const Expr& expr, Scope& scope);
  Value evaluate_call(const Expr& expr, Scope& scope);
  Value evaluate_slice(const Expr& expr, Scope& scope);
  Value call_macro(const Stmt& macro, const Scope& globals, const Arguments& arguments);
  Arguments arguments_of(const Expr& expr, Scope& scope);

  WorkBudget budget_;
  i64 line_ = 1, depth_ = 0;
};

Flow Interpreter::execute(const Block& block, Scope& scope, Rendering& out) {
  const DepthScope depth(*this);
  for (const StmtPtr& statement : block) {
    const Flow flow = execute(*statement, scope, out);
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Flow Interpreter::execute(const Stmt& statement, Scope& scope, Rendering& out) {
  line_ = statement.line;
  budget_.spend(WorkBudget::kExpression);
  switch (statement.kind) {
    case StmtKind::Text:
      append(statement.text, out);
      break;
    case StmtKind::Output:
      append_value(evaluate(*statement.value, scope), out);
      break;
    case StmtKind::If:
      return execute(evaluate(*statement.value, scope).is_true() ? statement.body : statement.other, scope, out);
    case StmtKind::For:
      return execute_loop(statement, scope, out);
    case StmtKind::Set:
    case StmtKind::SetMember:
      execute_set(statement, scope);
      break;
    case StmtKind::SetBlock:
      return execute_set_block(statement, scope);
    case StmtKind::Macro:
      define_macro(statement, scope);
      break;
    case StmtKind::Break:
      return Flow::Break;
    case StmtKind::Continue:
      return Flow::Continue;
    case StmtKind::Generation:
      return execute_generation(statement, scope, out);
  }
  return Flow::Next;
}

Flow Interpreter::execute_loop(const Stmt& statement, Scope& scope, Rendering& out) {
  List items = evaluate(*statement.value, scope).elements(budget_);
  if (statement.condition) {
    std::erase_if(items, [&](const Value& item) {
      budget_.spend(WorkBudget::kIteration);
      Scope inner{.parent = &scope};
      bind(statement.names, item, inner);
      return !evaluate(*statement.condition, inner).is_true();
    });
  }
  if (items.empty()) return execute(statement.other, scope, out);
  for (std::size_t i = 0; i < items.size(); ++i) {
    budget_.spend(WorkBudget::kIteration);
    Scope inner{.parent = &scope};
    inner.variables["loop"] = loop_variable(items, i);
    bind(statement.names, items[i], inner);
    if (execute(statement.body, inner, out) == Flow::Break) break;
  }
  return Flow::Next;
}

Value Interpreter::loop_variable(const List& items, std::size_t index) {
  const auto i = static_cast<i64>(index), count = std::ssize(items);
  Dict loop;
  loop.members = {{"index", Value(i + 1)},
                  {"index0", Value(i)},
                  {"revindex", Value(count - i)},
                  {"revindex0", Value(count - i - 1)},
                  {"first", Value(i == 0)},
                  {"last", Value(i + 1 == count)},
                  {"length", Value(count)},
                  {"previtem", Undefined{"loop.previtem of the first iteration"}},
                  {"nextitem", Undefined{"loop.nextitem of the last iteration"}}};
  if (i > 0) loop.set("previtem", items[index - 1]);
  if (i + 1 < count) loop.set("nextitem", items[index + 1]);
  loop.set("cycle", Value(Function([i](const Arguments& arguments) {
             check_input(!arguments.positional.empty(), "loop.cycle: needs arguments");
             return arguments.positional[static_cast<std::size_t>(i % std::ssize(arguments.positional))];
           })));
  return loop;
}

/// As in Jinja, a break or continue inside the block leaves the name unchanged and drops the text.
Flow Interpreter::execute_set_block(const Stmt& statement, Scope& scope) {
  Rendering captured;
  const Flow flow = execute(statement.body, scope, captured);
  if (flow == Flow::Next) scope.variables[statement.names[0]] = std::move(captured.text);
  return flow;
}

void Interpreter::execute_set(const Stmt& statement, Scope& scope) {
  const Value value = evaluate(*statement.value, scope);
  if (statement.kind == StmtKind::Set) return bind(statement.names, value, scope);
  const Value* object = scope.find(statement.names[0]);
  check_input(object && object->is_dict() && object->dict().is_namespace, statement.names[0],
              " is not a namespace, so its members cannot be set");
  budget_.spend(object->dict().members.size(), 2);
  object->dict().set(statement.names[1], value);
}

Flow Interpreter::execute_generation(const Stmt& statement, Scope& scope, Rendering& out) {
  const std::size_t begin = out.text.size();
  const Flow flow = execute(statement.body, scope, out);
  out.generated.emplace_back(begin, out.text.size());
  return flow;
}

void Interpreter::define_macro(const Stmt& statement, Scope& scope) {
  scope.variables[statement.text] = Value(Function(
      [this, &statement, &scope](const Arguments& arguments) { return call_macro(statement, scope, arguments); }));
}

Value Interpreter::call_macro(const Stmt& macro, const Scope& globals, const Arguments& arguments) {
  const DepthScope depth(*this);
  arguments.check_at_most(macro.names.size(), macro.text);
  Scope scope{.parent = &globals};
  for (std::size_t i = 0; i < macro.names.size(); ++i) {
    const std::string& name = macro.names[i];
    const Value* given = arguments.find(i, name);
    if (given)
      scope.variables[name] = *given;
    else
      scope.variables[name] =
          macro.defaults[i] ? evaluate(*macro.defaults[i], scope) : Undefined{str("the argument ", name)};
  }
  for (const auto& [name, value] : arguments.named)
    check_input(scope.variables.contains(name), macro.text, ": has no argument ", name);
  return text_of(macro.body, scope);
}

/// Assigns a value to a name, or its elements to several names.
void Interpreter::bind(const std::vector<std::string>& names, const Value& value, Scope& scope) {
  if (names.size() == 1) {
    scope.variables[names[0]] = value;
    return;
  }
  const List items = value.elements(budget_);
  check_input(items.size() == names.size(), "cannot unpack ", items.size(), " values into ", names.size(), " names");
  for (std::size_t i = 0; i < names.size(); ++i) scope.variables[names[i]] = items[i];
}

std::string Interpreter::text_of(const Block& block, Scope& scope) {
  Rendering captured;
  execute(block, scope, captured);
  return std::move(captured.text);
}

void Interpreter::append(std::string_view text, Rendering& out) {
  budget_.spend(std::ssize(text));
  out.text += text;
  check_input(out.text.size() <= kMaxTextBytes, "the text becomes longer than ", kMaxTextBytes, " bytes");
}

void Interpreter::append_value(const Value& value, Rendering& out) {
  budget_.spend(value.size());
  append(value.str(), out);
}

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  const DepthScope depth(*this);
  budget_.spend(WorkBudget::kExpression);
  const auto part = [&](std::size_t i) { return evaluate(*expr.parts[i], scope); };
  switch (expr.kind) {
    case ExprKind::Constant:
      return expr.value;
    case ExprKind::Name: {
      budget_.spend(scope.depth * WorkBudget::kElement);
      const Value* value = scope.find(expr.text);
      return value ? *value : Value(Undefined{str("'", expr.text, "'")});
    }
    case ExprKind::ListDisplay:
    case ExprKind::TupleDisplay:
    case ExprKind::DictDisplay:
      return evaluate_display(expr, scope);
    case ExprKind::Attribute:
      return attribute(part(0), expr.text, budget_);
    case ExprKind::Subscript:
      return subscript(part(0), part(1), budget_);
    case ExprKind::Slice:
      return evaluate_slice(expr, scope);
    case ExprKind::Call:
      return evaluate_call(expr, scope);
    case ExprKind::Filter:
      return apply_filter(expr.text, part(0), arguments_of(expr, scope));
    case ExprKind::Test:
      return Value(apply_test(expr.text, part(0), arguments_of(expr, scope)));
    case ExprKind::Unary:
      if (expr.text == "not") return Value(!part(0).is_true());
      return arithmetic(expr.text, Value(i64{0}), part(0), budget_);
    case ExprKind::Binary:
      return evaluate_binary(expr, scope);
    case ExprKind::Comparison:
      return evaluate_comparison(expr, scope);
    case ExprKind::Conditional:
      if (part(1).is_true()) return part(0);
      return expr.parts[2] ? part(2) : Value(Undefined{"the value of an if without else"});
  }
  fail(ExitCode::Internal, "unknown expression");
}

Value Interpreter::evaluate_display(const Expr& expr, Scope& scope) {
  List items;
  for (const ExprPtr& part : expr.parts) items.push_back(evaluate(*part, scope));
  if (expr.kind == ExprKind::TupleDisplay) return Value::tuple(std::move(items));
  if (expr.kind == ExprKind::ListDisplay) return items;
  Dict dict;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!items[i].is_text())
      fail(ExitCode::BadInput, "the key ", items[i].repr(), " is not a string, which is not supported");
    budget_.spend(dict.members.size(), 2);
    dict.set(items[i].text(), items[i + 1]);
  }
  return dict;
}

Value Interpreter::evaluate_slice(const Expr& expr, Scope& scope) {
  const auto bound = [&](std::size_t i) { return expr.parts[i] ? evaluate(*expr.parts[i], scope) : Value(); };
  return slice(evaluate(*expr.parts[0], scope), bound(1), bound(2), bound(3), budget_);
}

Value Interpreter::evaluate_binary(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.parts[0], scope);
  if (expr.text == "and") return left.is_true() ? evaluate(*expr.parts[1], scope) : left;
  if (expr.text == "or") return left.is_true() ? left : evaluate(*expr.parts[1], scope);
  return arithmetic(expr.text, left, evaluate(*expr.parts[1], scope), budget_);
}

Value Interpreter::evaluate_comparison(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.parts[0], scope);
  for (std::size_t i = 0; i < expr.names.size(); ++i) {
    Value right = evaluate(*expr.parts[i + 1], scope);
    const std::string& op = expr.names[i];
    budget_.spend(4 * std::min(left.size(), right.size()));
    const bool holds = op == "=="   ? left == right
                       : op == "!=" ? !(left == right)
                       : op == "<"  ? is_less(left, right)
                       : op == ">"  ? is_less(right, left)
                       : op == "<=" ? !is_less(right, left)
                       : op == ">=" ? !is_less(left, right)
                       : op == "in" ? contains(right, left, budget_)
                                    : !contains(right, left, budget_);
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Arguments Interpreter::arguments_of(const Expr& expr, Scope& scope) {
  Arguments arguments(budget_);
  for (std::size_t i = 1; i < expr.parts.size(); ++i) arguments.positional.push_back(evaluate(*expr.parts[i], scope));
  for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, evaluate(*value, scope));
  return arguments;
}

Value Interpreter::evaluate_call(const Expr& expr, Scope& scope) {
  const Expr& callee = *expr.parts[0];
  if (callee.kind == ExprKind::Attribute) {
    const Value object = evaluate(*callee.parts[0], scope);
    const Arguments arguments = arguments_of(expr, scope);
    if (auto result = call_method(object, callee.text, arguments)) return *std::move(result);
    const Value function = attribute(object, callee.text, budget_);
    check_input(function.is_function(), "the method '", callee.text, "' of a ", object.type_name(),
                " is not supported");
    return function.function()(arguments);
  }
  const Value function = evaluate(callee, scope);
  check_input(!function.is_undefined() || callee.kind != ExprKind::Name, "the function '", callee.text,
              "' is not supported; supported are dict, namespace, raise_exception, range, and macros defined before");
  return function.function()(arguments_of(expr, scope));
}

bool has_generation(const Block& block) {
  for (const StmtPtr& statement : block) {
    if (statement->kind == StmtKind::Generation || has_generation(statement->body) || has_generation(statement->other))
      return true;
  }
  return false;
}

}  // namespace

Template::Template(const std::string& source, std::string name) : name_(std::move(name)) {
  try {
    block_ = parse_template(source);
  } catch (const Error& error) {
    fail(error.code(), name_, ": ", error.what());
  }
  marks_generation_ = has_generation(block_);
}

Rendering Template::render(const Dict& variables, i64 max_work) const {
  Namespaces namespaces;
  Scope scope;
  for (const auto& [name, value] : global_functions(namespaces).members) scope.variables[name] = value;
  for (const auto& [name, value] : variables.members) scope.variables[name] = value;
  Interpreter interpreter(max_work);
  Rendering result;
  try {
    interpreter.execute(block_, scope, result);
  } catch (const Error& error) {
    fail(error.code(), name_, ": line ", interpreter.line(), ": ", error.what());
  }
  return result;
}

}  // namespace mcpp::jinja

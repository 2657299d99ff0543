#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "data/jinja/lexer.h"
#include "data/jinja/syntax_tree.h"

namespace mcpp::jinja {
namespace {

/// Position in the tokens of a template.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() {
    Token token = tokens_[at_];
    if (token.kind != TokenKind::End) ++at_;
    return token;
  }
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view op) const { return is(TokenKind::Operator) && current().text == op; }
  bool is_name(std::string_view name) const { return is(TokenKind::Name) && current().text == name; }
  bool skip_operator(std::string_view op) { return is_operator(op) && (++at_, true); }
  bool skip_name(std::string_view name) { return is_name(name) && (++at_, true); }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) fail_expected(str("'", op, "'"));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(str("'", name, "'"));
  }
  void expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) fail_expected(what);
    next();
  }
  std::string take_name() {
    if (!is(TokenKind::Name)) fail_expected("a name");
    return next().text;
  }
  i64 line() const { return current().line; }

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(ExitCode::BadInput, "line ", line(), ": ", parts...);
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    const std::string found = is(TokenKind::End)       ? "the end of the template"
                              : is(TokenKind::Text)    ? "text"
                              : current().text.empty() ? "the end of the tag"
                                                       : str("'", current().text, "'");
    fail_here("expected ", what, ", found ", found);
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

/// Max levels of nesting, and max operators in a row. Bounds the depth of recursion over a tree.
constexpr i64 kMaxNesting = 100;

/// Counts the levels of a recursive parser.
class DepthScope {
 public:
  DepthScope(i64& depth, const TokenStream& stream) : depth_(depth) {
    if (++depth_ > kMaxNesting) stream.fail_here("the template is nested deeper than ", kMaxNesting, " levels");
  }
  ~DepthScope() { --depth_; }
  DepthScope(const DepthScope&) = delete;
  DepthScope& operator=(const DepthScope&) = delete;

 private:
  i64& depth_;
};

/// Parser of expressions, with the precedence of Jinja.
class ExprParser {
 public:
  explicit ExprParser(TokenStream& stream) : stream_(stream) {}

  ExprPtr parse() {
    const DepthScope scope(depth_, stream_);
    ExprPtr value = parse_or();
    if (stream_.is_name("if")) {
      ExprPtr conditional = make(ExprKind::Conditional);
      stream_.next();
      conditional->parts.push_back(std::move(value));
      conditional->parts.push_back(parse_or());
      conditional->parts.push_back(stream_.skip_name("else") ? parse() : nullptr);
      value = std::move(conditional);
    }
    return value;
  }
  /// Parses an expression, or several separated by commas, which form a tuple.
  ExprPtr parse_tuple() {
    return parse_tuple_of([this] { return parse(); });
  }
  /// Parses the list of a for statement, in which `if` begins its condition.
  ExprPtr parse_iterable() {
    return parse_tuple_of([this] { return parse_or(); });
  }

 private:
  ExprPtr make(ExprKind kind, std::string text = "") const {
    return std::make_unique<Expr>(Expr{.kind = kind, .line = stream_.line(), .text = std::move(text)});
  }
  ExprPtr constant(Value value) const {
    ExprPtr expr = make(ExprKind::Constant);
    expr->value = std::move(value);
    return expr;
  }

  void check_length(i64 operators) const {
    if (operators > kMaxNesting) stream_.fail_here("the expression has more than ", kMaxNesting, " operators in a row");
  }
  bool ends_tuple() const {
    return stream_.is(TokenKind::EndOutput) || stream_.is(TokenKind::EndBlock) || stream_.is_operator(")") ||
           stream_.is_name("if") || stream_.is_name("recursive");
  }
  template <class Parse>
  ExprPtr parse_tuple_of(const Parse& parse_one) {
    ExprPtr first = parse_one();
    if (!stream_.is_operator(",")) return first;
    ExprPtr tuple = make(ExprKind::TupleDisplay);
    tuple->parts.push_back(std::move(first));
    while (stream_.skip_operator(",") && !ends_tuple()) tuple->parts.push_back(parse_one());
    return tuple;
  }

  template <class Parse>
  ExprPtr parse_binary(std::initializer_list<std::string_view> ops, const Parse& parse_operand) {
    ExprPtr left = parse_operand();
    for (i64 count = 0;; ++count) {
      check_length(count);
      const auto op = std::ranges::find_if(ops, [&](std::string_view name) {
        return name == "or" || name == "and" ? stream_.is_name(name) : stream_.is_operator(name);
      });
      if (op == ops.end()) return left;
      ExprPtr binary = make(ExprKind::Binary, std::string(*op));
      stream_.next();
      binary->parts.push_back(std::move(left));
      binary->parts.push_back(parse_operand());
      left = std::move(binary);
    }
  }
  ExprPtr parse_or() {
    return parse_binary({"or"}, [this] { return parse_and(); });
  }
  ExprPtr parse_and() {
    return parse_binary({"and"}, [this] { return parse_not(); });
  }
  ExprPtr parse_not() {
    const DepthScope scope(depth_, stream_);
    if (!stream_.is_name("not")) return parse_comparison();
    ExprPtr negation = make(ExprKind::Unary, "not");
    stream_.next();
    negation->parts.push_back(parse_not());
    return negation;
  }

  /// Returns the next comparison operator, if any, after skipping it.
  std::optional<std::string> skip_comparison() {
    constexpr std::array<std::string_view, 6> kOperators{"==", "!=", "<=", ">=", "<", ">"};
    for (const std::string_view op : kOperators) {
      if (stream_.skip_operator(op)) return std::string(op);
    }
    if (stream_.skip_name("in")) return "in";
    const bool is_not_in = stream_.is_name("not") && stream_.following().text == "in";
    if (!is_not_in) return std::nullopt;
    stream_.next();
    stream_.next();
    return "not in";
  }
  ExprPtr parse_comparison() {
    ExprPtr left = parse_sum();
    ExprPtr comparison = make(ExprKind::Comparison);
    while (const auto op = skip_comparison()) {
      if (left) comparison->parts.push_back(std::move(left));
      comparison->names.push_back(*op);
      comparison->parts.push_back(parse_sum());
    }
    return left ? std::move(left) : std::move(comparison);
  }
  ExprPtr parse_sum() {
    return parse_binary({"+", "-"}, [this] { return parse_concatenation(); });
  }
  ExprPtr parse_concatenation() {
    return parse_binary({"~"}, [this] { return parse_product(); });
  }
  ExprPtr parse_product() {
    return parse_binary({"*", "//", "/", "%"}, [this] { return parse_power(); });
  }
  ExprPtr parse_power() {
    return parse_binary({"**"}, [this] { return parse_unary(true); });
  }

  ExprPtr parse_unary(bool with_filters) {
    const DepthScope scope(depth_, stream_);
    ExprPtr value;
    if (stream_.is_operator("-") || stream_.is_operator("+")) {
      value = make(ExprKind::Unary, stream_.current().text);
      stream_.next();
      value->parts.push_back(parse_unary(false));
    } else {
      value = parse_primary();
    }
    value = parse_postfix(std::move(value));
    return with_filters ? parse_filters(std::move(value)) : std::move(value);
  }

  ExprPtr parse_primary() {
    const Token token = stream_.current();
    if (token.kind == TokenKind::Name) {
      stream_.next();
      return named_value(token.text);
    }
    if (token.kind == TokenKind::String) {
      std::string text;
      while (stream_.is(TokenKind::String)) text += stream_.next().text;
      return constant(text);
    }
    if (token.kind == TokenKind::Integer || token.kind == TokenKind::Float) return parse_number_token();
    if (stream_.skip_operator("(")) {
      if (stream_.skip_operator(")")) return make(ExprKind::TupleDisplay);
      ExprPtr value = parse_tuple();
      stream_.expect_operator(")");
      return value;
    }
    if (stream_.skip_operator("[")) return parse_list();
    if (stream_.skip_operator("{")) return parse_dict();
    stream_.fail_expected("a value");
  }
  ExprPtr named_value(const std::string& name) const {
    if (name == "true" || name == "True") return constant(Value(true));
    if (name == "false" || name == "False") return constant(Value(false));
    if (name == "none" || name == "None") return constant({});
    return make(ExprKind::Name, name);
  }
  ExprPtr parse_number_token() {
    const Token token = stream_.next();
    if (token.kind == TokenKind::Float) return constant(Value(parse_number<double>(token.text).value()));
    const auto number = parse_number<i64>(token.text);
    if (!number) stream_.fail_here("the number ", token.text, " is too large");
    return constant(Value(*number));
  }
  ExprPtr parse_list() {
    ExprPtr list = make(ExprKind::ListDisplay);
    while (!stream_.skip_operator("]")) {
      if (!list->parts.empty()) stream_.expect_operator(",");
      if (stream_.skip_operator("]")) break;
      list->parts.push_back(parse());
    }
    return list;
  }
  ExprPtr parse_dict() {
    ExprPtr dict = make(ExprKind::DictDisplay);
    while (!stream_.skip_operator("}")) {
      if (!dict->parts.empty()) stream_.expect_operator(",");
      if (stream_.skip_operator("}")) break;
      dict->parts.push_back(parse());
      stream_.expect_operator(":");
      dict->parts.push_back(parse());
    }
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr value) {
    for (i64 count = 0;; ++count) {
      check_length(count);
      if (stream_.is_operator(".")) {
        value = parse_attribute(std::move(value));
      } else if (stream_.is_operator("[")) {
        value = parse_subscript(std::move(value));
      } else if (stream_.is_operator("(")) {
        value = parse_call(std::move(value));
      } else {
        return value;
      }
    }
  }
  ExprPtr parse_attribute(ExprPtr object) {
    stream_.next();
    ExprPtr attribute = make(ExprKind::Attribute);
    attribute->parts.push_back(std::move(object));
    if (stream_.is(TokenKind::Integer)) {  // x.0 is x[0]
      attribute->kind = ExprKind::Subscript;
      attribute->parts.push_back(parse_number_token());
    } else {
      attribute->text = stream_.take_name();
    }
    return attribute;
  }
  ExprPtr parse_subscript(ExprPtr object) {
    stream_.next();
    ExprPtr subscript = make(ExprKind::Subscript);
    subscript->parts.push_back(std::move(object));
    const auto parse_bound = [&]() -> ExprPtr {
      return stream_.is_operator(":") || stream_.is_operator("]") ? nullptr : parse();
    };
    subscript->parts.push_back(parse_bound());
    while (stream_.skip_operator(":")) {
      subscript->kind = ExprKind::Slice;
      subscript->parts.push_back(parse_bound());
    }
    if (subscript->kind == ExprKind::Subscript && !subscript->parts[1]) stream_.fail_expected("an index");
    if (subscript->parts.size() > 4) stream_.fail_here("a slice has at most three bounds");
    if (subscript->kind == ExprKind::Slice) subscript->parts.resize(4);
    stream_.expect_operator("]");
    return subscript;
  }
  ExprPtr parse_call(ExprPtr function) {
    ExprPtr call = make(ExprKind::Call);
    call->parts.push_back(std::move(function));
    parse_arguments(*call);
    return call;
  }
  /// Parses "(a, b, name=c)" and appends the arguments to `call`.
  void parse_arguments(Expr& call) {
    const DepthScope scope(depth_, stream_);
    stream_.expect_operator("(");
    for (bool is_first = true; !stream_.skip_operator(")"); is_first = false) {
      if (!is_first) stream_.expect_operator(",");
      if (stream_.skip_operator(")")) return;
      if (stream_.is_operator("*") || stream_.is_operator("**"))
        stream_.fail_here("'", stream_.current().text, "' in arguments is not supported");
      const bool is_named = stream_.is(TokenKind::Name) && stream_.following().kind == TokenKind::Operator &&
                            stream_.following().text == "=";
      if (!is_named) {
        if (!call.named.empty()) stream_.fail_here("a positional argument follows a named one");
        call.parts.push_back(parse());
        continue;
      }
      std::string name = stream_.take_name();
      stream_.next();
      call.named.emplace_back(std::move(name), parse());
    }
  }

  /// Parses filters, tests and calls after a value.
  ExprPtr parse_filters(ExprPtr value) {
    for (i64 count = 0;; ++count) {
      check_length(count);
      if (stream_.skip_operator("|")) {
        ExprPtr filter = make(ExprKind::Filter, dotted_name());
        filter->parts.push_back(std::move(value));
        if (stream_.is_operator("(")) parse_arguments(*filter);
        value = std::move(filter);
      } else if (stream_.skip_name("is")) {
        value = parse_test(std::move(value));
      } else if (stream_.is_operator("(")) {
        value = parse_call(std::move(value));
      } else {
        return value;
      }
    }
  }
  std::string dotted_name() {
    std::string name = stream_.take_name();
    while (stream_.skip_operator(".")) name.append(".").append(stream_.take_name());
    return name;
  }
  ExprPtr parse_test(ExprPtr value) {
    const i64 line = stream_.line();
    const bool is_negated = stream_.skip_name("not");
    ExprPtr test = make(ExprKind::Test, dotted_name());
    test->parts.push_back(std::move(value));
    if (stream_.is_operator("(")) {
      parse_arguments(*test);
    } else if (begins_argument()) {
      test->parts.push_back(parse_postfix(parse_primary()));
    }
    if (!is_negated) return test;
    ExprPtr negation = make(ExprKind::Unary, "not");
    negation->line = line;
    negation->parts.push_back(std::move(test));
    return negation;
  }
  /// Returns true if the next token begins the argument of a test without parentheses.
  bool begins_argument() const {
    constexpr std::array<std::string_view, 6> kWords{"else", "or", "and", "if", "is", "in"};
    if (stream_.is(TokenKind::Name)) return std::ranges::find(kWords, stream_.current().text) == kWords.end();
    return stream_.is(TokenKind::String) || stream_.is(TokenKind::Integer) || stream_.is(TokenKind::Float) ||
           stream_.is_operator("[") || stream_.is_operator("{");
  }

  TokenStream& stream_;
  i64 depth_ = 0;
};

/// Parser of statements.
class TemplateParser {
 public:
  explicit TemplateParser(std::string_view source) : stream_(tokenize_template(source)), expressions_(stream_) {}

  Block parse() {
    Block block = parse_block({});
    if (!stream_.is(TokenKind::End)) stream_.fail_here("unexpected '", stream_.following().text, "'");
    return block;
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  StmtPtr make(StmtKind kind) const { return std::make_unique<Stmt>(Stmt{.kind = kind, .line = stream_.line()}); }
  /// Parses up to a block that begins with one of `ends`, or to the end of the template.
  Block parse_block(Words ends) {
    const DepthScope scope(depth_, stream_);
    Block block;
    while (!stream_.is(TokenKind::End)) {
      if (stream_.is(TokenKind::Text)) {
        StmtPtr text = make(StmtKind::Text);
        text->text = stream_.next().text;
        block.push_back(std::move(text));
      } else if (stream_.is(TokenKind::BeginOutput)) {
        StmtPtr output = make(StmtKind::Output);
        stream_.next();
        output->value = expressions_.parse_tuple();
        stream_.expect(TokenKind::EndOutput, "'}}'");
        block.push_back(std::move(output));
      } else {
        const std::string& word = stream_.following().text;
        if (std::ranges::find(ends, word) != ends.end()) break;
        if (word.starts_with("end") || word == "else" || word == "elif") break;  // reported by the caller
        stream_.next();
        block.push_back(parse_statement());
      }
    }
    return block;
  }
  /// Parses a block up to `end`. It must not contain a generation block, whose place in the text of the template would
  /// not be known, or not be unique. `kind` describes the block.
  Block parse_block_without_generation(std::string_view kind, std::string_view end) {
    const std::string_view outer = std::exchange(block_without_generation_, kind);
    Block block = parse_block({end});
    block_without_generation_ = outer;
    return block;
  }
  void end_block() { stream_.expect(TokenKind::EndBlock, "'%}'"); }
  /// Parses "{% word %}".
  void expect_end(std::string_view word) {
    if (!stream_.is(TokenKind::BeginBlock) || stream_.following().text != word)
      stream_.fail_expected(str("{% ", word, " %}"));
    stream_.next();
    stream_.next();
    end_block();
  }

  StmtPtr parse_statement() {
    const std::string word = stream_.take_name();
    if (word == "if") return parse_if();
    if (word == "for") return parse_for();
    if (word == "set") return parse_set();
    if (word == "macro") return parse_macro();
    if (word == "generation") return parse_generation();
    if (word == "break" || word == "continue") {
      if (loops_ == 0) stream_.fail_here("'", word, "' is outside of a loop");
      StmtPtr statement = make(word == "break" ? StmtKind::Break : StmtKind::Continue);
      end_block();
      return statement;
    }
    stream_.fail_here("the statement '", word,
                      "' is not supported; supported are if, for, set, macro, break, continue and generation");
  }

  StmtPtr parse_if() {
    const DepthScope scope(depth_, stream_);
    StmtPtr statement = make(StmtKind::If);
    statement->value = expressions_.parse_tuple();
    end_block();
    statement->body = parse_block({"elif", "else", "endif"});
    if (stream_.following().text == "elif") {
      stream_.next();
      stream_.next();
      statement->other.push_back(parse_if());
      return statement;
    }
    if (stream_.following().text == "else") {
      expect_end("else");
      statement->other = parse_block({"endif"});
    }
    expect_end("endif");
    return statement;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> names;
    const bool has_parenthesis = stream_.skip_operator("(");
    do {
      names.push_back(stream_.take_name());
    } while (stream_.skip_operator(","));
    if (has_parenthesis) stream_.expect_operator(")");
    return names;
  }

  StmtPtr parse_for() {
    StmtPtr statement = make(StmtKind::For);
    statement->names = parse_targets();
    stream_.expect_name("in");
    statement->value = expressions_.parse_iterable();
    if (stream_.skip_name("if")) statement->condition = expressions_.parse();
    if (stream_.is_name("recursive")) stream_.fail_here("recursive loops are not supported");
    end_block();
    ++loops_;
    statement->body = parse_block({"else", "endfor"});
    --loops_;
    if (stream_.following().text == "else") {
      expect_end("else");
      statement->other = parse_block({"endfor"});
    }
    expect_end("endfor");
    return statement;
  }

  StmtPtr parse_set() {
    StmtPtr statement = make(StmtKind::Set);
    statement->names = parse_targets();
    if (stream_.skip_operator(".")) {
      statement->kind = StmtKind::SetMember;
      statement->names.push_back(stream_.take_name());
    }
    if (stream_.skip_operator("=")) {
      statement->value = expressions_.parse_tuple();
      end_block();
      return statement;
    }
    if (statement->kind != StmtKind::Set || statement->names.size() != 1) stream_.fail_expected("'='");
    statement->kind = StmtKind::SetBlock;
    end_block();
    statement->body = parse_block_without_generation("a set block", "endset");
    expect_end("endset");
    return statement;
  }

  StmtPtr parse_macro() {
    StmtPtr statement = make(StmtKind::Macro);
    if (loops_ > 0 || is_in_macro_) stream_.fail_here("a macro inside a loop or a macro is not supported; move it out");
    is_in_macro_ = true;
    statement->text = stream_.take_name();
    stream_.expect_operator("(");
    while (!stream_.skip_operator(")")) {
      if (!statement->names.empty()) stream_.expect_operator(",");
      statement->names.push_back(stream_.take_name());
      statement->defaults.push_back(stream_.skip_operator("=") ? expressions_.parse() : nullptr);
    }
    end_block();
    statement->body = parse_block_without_generation("a macro", "endmacro");
    is_in_macro_ = false;
    expect_end("endmacro");
    return statement;
  }

  StmtPtr parse_generation() {
    if (!block_without_generation_.empty()) {
      stream_.fail_here("a generation block inside ", block_without_generation_,
                        " is not supported, because its tokens could not be found; move it out");
    }
    StmtPtr statement = make(StmtKind::Generation);
    end_block();
    statement->body = parse_block_without_generation("a generation block", "endgeneration");
    expect_end("endgeneration");
    return statement;
  }

  TokenStream stream_;
  ExprParser expressions_;
  i64 depth_ = 0, loops_ = 0;
  bool is_in_macro_ = false;
  std::string_view block_without_generation_;  // kind of the innermost enclosing one
};

}  // namespace

Block parse_template(std::string_view source) {
  return TemplateParser(source).parse();
}

}  // namespace mcpp::jinja

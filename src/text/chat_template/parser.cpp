#include "text/chat_template/parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "text/chat_template/filters.h"
#include "text/chat_template/lexer.h"
#include "text/chat_template/tests.h"

namespace keel::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxBlockDepth = 60;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    Block block = statements({});
    return block;
  }

 private:
  // --- Tokens ---
  const Token& now() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token take() {
    Token token = now();
    if (token.kind != TokenKind::end) ++position_;
    return token;
  }
  bool is_symbol(std::string_view text) const { return now().kind == TokenKind::symbol && now().text == text; }
  bool is_name(std::string_view text) const { return now().kind == TokenKind::name && now().text == text; }
  bool skip_symbol(std::string_view text) { return is_symbol(text) && (++position_, true); }
  bool skip_name(std::string_view text) { return is_name(text) && (++position_, true); }

  [[noreturn]] void refuse(int line, std::string_view what) const { fail("chat template, line {}: {}", line, what); }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    refuse(now().line,
           fmt::format("expected {}, found {}",
                       wanted,
                       now().kind == TokenKind::end ? std::string("the end") : "'" + now().text + "'"));
  }
  void expect_symbol(std::string_view text) {
    if (!skip_symbol(text)) unexpected("'" + std::string(text) + "'");
  }
  std::string expect_identifier() {
    if (now().kind != TokenKind::name) unexpected("a name");
    return take().text;
  }
  void expect_block_end() {
    if (now().kind != TokenKind::block_end) unexpected("'%}'");
    take();
  }

  // --- Statements ---
  // Up to a tag named in `ends`, whose name is then the current token; without ends, up to the end of the template.
  Block statements(std::initializer_list<std::string_view> ends) {
    if (++block_depth_ > kMaxBlockDepth) refuse(now().line, "blocks are nested too deep");
    const int start_line = now().line;
    Block block;
    while (now().kind != TokenKind::end) {
      Token token = take();
      if (token.kind == TokenKind::data) {
        block.push_back({.kind = StatementKind::text, .line = token.line, .text = std::move(token.text)});
      } else if (token.kind == TokenKind::print_begin) {
        Statement print{.kind = StatementKind::print, .line = token.line};
        print.value = tuple_or_expression();
        if (now().kind != TokenKind::print_end) unexpected("'}}'");
        take();
        block.push_back(std::move(print));
      } else {
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end() && now().kind == TokenKind::name) {
          --block_depth_;
          return block;
        }
        block.push_back(statement());
        expect_block_end();
      }
    }
    if (ends.size() > 0) refuse(start_line, fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
    --block_depth_;
    return block;
  }

  // `break` may not leave the body that `parse_body` reads.
  template <class Parse>
  auto outside_loops(Parse parse_body) {
    const int outer = std::exchange(loop_depth_, 0);
    auto result = parse_body();
    loop_depth_ = outer;
    return result;
  }

  // The body after a tag, then its end tag's name.
  Block body_until(std::string_view end) {
    skip_symbol(":");
    expect_block_end();
    Block block = statements({end});
    take();
    return block;
  }

  Statement statement() {
    const int line = now().line;
    const std::string tag = expect_identifier();
    if (tag == "if") return condition(line);
    if (tag == "for") return loop(line);
    if (tag == "set") return assignment(line);
    if (tag == "macro") return macro(line);
    if (tag == "call") return call_block(line);
    if (tag == "filter") return filter_block(line);
    if (tag == "with") return with(line);
    if (tag == "generation") {
      Statement scope{.kind = StatementKind::scope, .line = line};
      scope.body = outside_loops([&] { return body_until("endgeneration"); });
      return scope;
    }
    if (tag == "print") {
      Statement print{.kind = StatementKind::print, .line = line};
      print.value = expression();
      return print;
    }
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) refuse(line, "{% " + tag + " %} outside a loop");
      return {.kind = tag == "break" ? StatementKind::stop : StatementKind::skip, .line = line};
    }
    if (tag.starts_with("end") || tag == "else" || tag == "elif") refuse(line, "{% " + tag + " %} ends nothing");
    refuse(line, "{% " + tag + " %} is not supported");
  }

  Statement condition(int line) {
    Statement result{.kind = StatementKind::condition, .line = line};
    while (true) {
      ExpressionPtr test = tuple_or_expression(false);
      skip_symbol(":");
      expect_block_end();
      Block body = statements({"elif", "else", "endif"});
      result.branches.emplace_back(std::move(test), std::move(body));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") result.otherwise = body_until("endif");
      return result;
    }
  }

  Statement loop(int line) {
    Statement result{.kind = StatementKind::loop, .line = line};
    result.target = target(false);
    if (!skip_name("in")) unexpected("'in'");
    result.value = tuple_or_expression(false);
    if (skip_name("if")) result.filter = expression();
    if (is_name("recursive")) refuse(line, "recursive loops are not supported");
    skip_symbol(":");
    expect_block_end();
    ++loop_depth_;
    result.body = statements({"else", "endfor"});
    --loop_depth_;
    if (take().text == "else") result.otherwise = body_until("endfor");
    return result;
  }

  Statement assignment(int line) {
    Statement result{.kind = StatementKind::assign, .line = line};
    result.target = target(true);
    if (skip_symbol("=")) {
      result.value = tuple_or_expression();
      return result;
    }
    result.kind = StatementKind::capture;
    while (skip_symbol("|")) result.value = filter(std::move(result.value));
    result.body = outside_loops([&] { return body_until("endset"); });
    return result;
  }

  std::shared_ptr<MacroSyntax> signature(std::string name, bool required) {
    auto result = std::make_shared<MacroSyntax>();
    result->name = std::move(name);
    if (!required && !is_symbol("(")) return result;
    expect_symbol("(");
    while (!skip_symbol(")")) {
      if (!result->parameters.empty()) expect_symbol(",");
      result->parameters.push_back(expect_identifier());
      if (skip_symbol("=")) {
        result->defaults.push_back(expression());
      } else if (!result->defaults.empty()) {
        refuse(now().line, "a parameter without default after one with");
      }
    }
    return result;
  }

  void macro_body(MacroSyntax& macro, std::string_view end) {
    MacroSyntax* outer = std::exchange(macro_, &macro);
    macro.body = std::make_shared<Block>(outside_loops([&] { return body_until(end); }));
    macro_ = outer;
  }

  Statement macro(int line) {
    Statement result{.kind = StatementKind::macro, .line = line};
    std::string name = expect_identifier();
    result.macro = signature(std::move(name), true);
    macro_body(*result.macro, "endmacro");
    return result;
  }

  Statement call_block(int line) {
    Statement result{.kind = StatementKind::call, .line = line};
    result.macro = signature("caller", false);
    result.value = expression();
    if (result.value->kind != ExpressionKind::call) refuse(line, "{% call %} needs a call");
    macro_body(*result.macro, "endcall");
    return result;
  }

  Statement filter_block(int line) {
    Statement result{.kind = StatementKind::filter, .line = line};
    do {
      result.value = filter(std::move(result.value));
    } while (skip_symbol("|"));
    result.body = outside_loops([&] { return body_until("endfilter"); });
    return result;
  }

  Statement with(int line) {
    Statement result{.kind = StatementKind::with, .line = line};
    while (now().kind != TokenKind::block_end) {
      if (!result.bindings.empty()) expect_symbol(",");
      ExpressionPtr name = target(false);
      expect_symbol("=");
      result.bindings.emplace_back(std::move(name), expression());
    }
    result.body = body_until("endwith");
    return result;
  }

  // --- Expressions ---
  template <class... Children>
  ExpressionPtr make(ExpressionKind kind, int line, Children... children) {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->line = line;
    (adopt(*result, std::move(children)), ...);
    return result;
  }

  void adopt(Expression& parent, ExpressionPtr child) {
    measure(parent, child);
    parent.children.push_back(std::move(child));
  }

  void measure(Expression& parent, const ExpressionPtr& child) {
    if (!child) return;
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxExpressionDepth) refuse(parent.line, "an expression is nested too deep");
  }

  ExpressionPtr constant(int line, Value value) {
    ExpressionPtr result = make(ExpressionKind::constant, line);
    result->constant = std::move(value);
    return result;
  }

  // A name, a tuple of names, or ns.attribute.
  ExpressionPtr target(bool with_space) {
    const int line = now().line;
    ExpressionPtr first = single_target(with_space);
    if (!is_symbol(",")) return first;
    ExpressionPtr result = make(ExpressionKind::tuple, line, std::move(first));
    while (skip_symbol(",")) {
      if (is_name("in") || is_symbol("=")) break;
      adopt(*result, single_target(with_space));
    }
    return result;
  }

  ExpressionPtr single_target(bool with_space) {
    const int line = now().line;
    if (skip_symbol("(")) {
      ExpressionPtr inner = target(with_space);
      expect_symbol(")");
      return inner;
    }
    ExpressionPtr result = make(ExpressionKind::name, line);
    result->text = expect_identifier();
    for (std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (result->text == reserved) refuse(line, "cannot assign to '" + result->text + "'");
    }
    if (with_space && skip_symbol(".")) {
      result->kind = ExpressionKind::space_attribute;
      result->attribute = expect_identifier();
    }
    return result;
  }

  bool at_tuple_end() const {
    return now().kind == TokenKind::print_end || now().kind == TokenKind::block_end || is_symbol(")") ||
           is_name("recursive");
  }

  // a, b, c without brackets, or one expression. In parentheses nothing at all is the empty tuple.
  ExpressionPtr tuple_or_expression(bool with_conditional = true, bool in_parentheses = false) {
    const int line = now().line;
    if (in_parentheses && at_tuple_end()) return make(ExpressionKind::tuple, line);
    ExpressionPtr first = with_conditional ? expression() : disjunction();
    if (!is_symbol(",")) return first;
    ExpressionPtr result = make(ExpressionKind::tuple, line, std::move(first));
    while (skip_symbol(",")) {
      if (at_tuple_end()) break;
      adopt(*result, with_conditional ? expression() : disjunction());
    }
    return result;
  }

  ExpressionPtr expression() {
    // The parser itself goes down with the brackets, before any node can be measured.
    if (++nesting_ > kMaxExpressionDepth) refuse(now().line, "an expression is nested too deep");
    ExpressionPtr result = disjunction();
    while (is_name("if")) {
      const int line = take().line;
      ExpressionPtr test = disjunction();
      ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
      result = make(ExpressionKind::conditional, line, std::move(result), std::move(test), std::move(otherwise));
    }
    --nesting_;
    return result;
  }

  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    while (is_name("or")) {
      const int line = take().line;
      left = make(ExpressionKind::logic_or, line, std::move(left), conjunction());
    }
    return left;
  }

  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    while (is_name("and")) {
      const int line = take().line;
      left = make(ExpressionKind::logic_and, line, std::move(left), negation());
    }
    return left;
  }

  ExpressionPtr negation() {
    if (!is_name("not")) return comparison();
    const int line = take().line;
    if (++nesting_ > kMaxExpressionDepth) refuse(line, "an expression is nested too deep");
    ExpressionPtr inner = negation();
    --nesting_;
    return make(ExpressionKind::logic_not, line, std::move(inner));
  }

  ExpressionPtr comparison() {
    const int line = now().line;
    ExpressionPtr first = sum();
    std::vector<std::string> operators;
    std::vector<ExpressionPtr> operands;
    while (true) {
      constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
      const bool is_operator =
          now().kind == TokenKind::symbol && std::find(std::begin(kOperators), std::end(kOperators), now().text) != std::end(kOperators);
      if (is_operator || is_name("in")) {
        operators.push_back(take().text);
      } else if (is_name("not") && look().kind == TokenKind::name && look().text == "in") {
        take();
        take();
        operators.push_back("not in");
      } else {
        break;
      }
      operands.push_back(sum());
    }
    if (operators.empty()) return first;
    ExpressionPtr result = make(ExpressionKind::compare, line, std::move(first));
    for (ExpressionPtr& operand : operands) adopt(*result, std::move(operand));
    result->operators = std::move(operators);
    return result;
  }

  template <class Operand>
  ExpressionPtr binary(std::initializer_list<std::string_view> symbols, Operand operand) {
    ExpressionPtr left = operand();
    while (now().kind == TokenKind::symbol && std::find(symbols.begin(), symbols.end(), now().text) != symbols.end()) {
      Token token = take();
      left = make(ExpressionKind::binary, token.line, std::move(left), operand());
      left->text = token.text;
    }
    return left;
  }

  ExpressionPtr sum() {
    return binary({"+", "-"}, [&] { return concatenation(); });
  }

  ExpressionPtr concatenation() {
    const int line = now().line;
    ExpressionPtr first = product();
    if (!is_symbol("~")) return first;
    ExpressionPtr result = make(ExpressionKind::concat, line, std::move(first));
    while (skip_symbol("~")) adopt(*result, product());
    return result;
  }

  ExpressionPtr product() {
    return binary({"*", "/", "//", "%"}, [&] { return power(); });
  }

  ExpressionPtr power() {
    return binary({"**"}, [&] { return unary(true); });  // from left to right, unlike Python: Jinja's way
  }

  ExpressionPtr unary(bool with_filters) {
    const int line = now().line;
    ExpressionPtr result;
    if (is_symbol("-") || is_symbol("+")) {
      const bool negates = take().text == "-";
      if (++nesting_ > kMaxExpressionDepth) refuse(line, "an expression is nested too deep");
      ExpressionPtr inner = unary(false);
      --nesting_;
      result = make(negates ? ExpressionKind::negate : ExpressionKind::plus, line, std::move(inner));
    } else {
      result = primary();
    }
    result = postfix(std::move(result));
    return with_filters ? filters_and_tests(std::move(result)) : std::move(result);
  }

  ExpressionPtr primary() {
    const Token token = take();
    switch (token.kind) {
      case TokenKind::name: {
        if (token.text == "true" || token.text == "True") return constant(token.line, true);
        if (token.text == "false" || token.text == "False") return constant(token.line, false);
        if (token.text == "none" || token.text == "None") return constant(token.line, None{});
        if (token.text == "self") refuse(token.line, "'self' is not supported");
        if (macro_) {
          macro_->uses_caller |= token.text == "caller";
          macro_->uses_varargs |= token.text == "varargs";
          macro_->uses_kwargs |= token.text == "kwargs";
        }
        ExpressionPtr result = make(ExpressionKind::name, token.line);
        result->text = token.text;
        return result;
      }
      case TokenKind::string: {
        std::string joined = token.text;
        while (now().kind == TokenKind::string) joined += take().text;
        return constant(token.line, text(std::move(joined)));
      }
      case TokenKind::integer:
        return constant(token.line, token.integer);
      case TokenKind::real:
        return constant(token.line, token.real);
      case TokenKind::symbol:
        if (token.text == "(") {
          ExpressionPtr result = tuple_or_expression(true, true);
          expect_symbol(")");
          return result;
        }
        if (token.text == "[") return list(token.line);
        if (token.text == "{") return dict(token.line);
        [[fallthrough]];
      default:
        --position_;
        unexpected("an expression");
    }
  }

  ExpressionPtr list(int line) {
    ExpressionPtr result = make(ExpressionKind::list, line);
    while (!skip_symbol("]")) {
      if (!result->children.empty()) {
        expect_symbol(",");
        if (skip_symbol("]")) break;
      }
      adopt(*result, expression());
    }
    return result;
  }

  ExpressionPtr dict(int line) {
    ExpressionPtr result = make(ExpressionKind::dict, line);
    while (!skip_symbol("}")) {
      if (!result->children.empty()) {
        expect_symbol(",");
        if (skip_symbol("}")) break;
      }
      adopt(*result, expression());
      expect_symbol(":");
      adopt(*result, expression());
    }
    return result;
  }

  ExpressionPtr postfix(ExpressionPtr inner) {
    while (true) {
      const int line = now().line;
      if (skip_symbol(".")) {
        if (now().kind == TokenKind::integer) {
          inner = make(ExpressionKind::item, line, std::move(inner), constant(line, take().integer));
        } else {
          inner = make(ExpressionKind::attribute, line, std::move(inner));
          inner->text = expect_identifier();
        }
      } else if (skip_symbol("[")) {
        inner = subscript(line, std::move(inner));
      } else if (is_symbol("(")) {
        inner = make(ExpressionKind::call, line, std::move(inner));
        arguments(*inner);
      } else {
        return inner;
      }
    }
  }

  ExpressionPtr subscript(int line, ExpressionPtr inner) {
    ExpressionPtr parts[3];
    bool is_slice = false;
    if (!is_symbol(":")) parts[0] = expression();
    for (int i = 1; i < 3 && skip_symbol(":"); ++i) {
      is_slice = true;
      if (!is_symbol(":") && !is_symbol("]")) parts[i] = expression();
    }
    if (is_symbol(",")) refuse(line, "subscripts with commas are not supported");
    expect_symbol("]");
    if (!is_slice) return make(ExpressionKind::item, line, std::move(inner), std::move(parts[0]));
    return make(ExpressionKind::slice, line, std::move(inner), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  }

  void arguments(Expression& call) {
    expect_symbol("(");
    bool first = true;
    while (!skip_symbol(")")) {
      if (!std::exchange(first, false)) {
        expect_symbol(",");
        if (skip_symbol(")")) break;
      }
      if (is_symbol("*") || is_symbol("**")) refuse(now().line, "'*' and '**' arguments are not supported");
      if (now().kind == TokenKind::name && look().kind == TokenKind::symbol && look().text == "=") {
        std::string name = take().text;
        take();
        call.named.emplace_back(std::move(name), expression());
        measure(call, call.named.back().second);
      } else {
        if (!call.named.empty()) refuse(now().line, "a positional argument after a named one");
        call.positional.push_back(expression());
        measure(call, call.positional.back());
      }
    }
  }

  ExpressionPtr filters_and_tests(ExpressionPtr inner) {
    while (true) {
      const int line = now().line;
      if (skip_symbol("|")) {
        inner = filter(std::move(inner));
      } else if (skip_name("is")) {
        inner = test(line, std::move(inner));
      } else if (is_symbol("(")) {
        inner = make(ExpressionKind::call, line, std::move(inner));
        arguments(*inner);
      } else {
        return inner;
      }
    }
  }

  std::string dotted_name() {
    std::string name = expect_identifier();
    while (skip_symbol(".")) name += "." + expect_identifier();
    return name;
  }

  ExpressionPtr filter(ExpressionPtr inner) {
    const int line = now().line;
    std::string name = dotted_name();
    if (!is_known_filter(name)) refuse(line, "filter '" + name + "' is not supported");
    ExpressionPtr result = make(ExpressionKind::filter, line, std::move(inner));
    result->text = std::move(name);
    if (is_symbol("(")) arguments(*result);
    return result;
  }

  ExpressionPtr test(int line, ExpressionPtr inner) {
    const bool negated = skip_name("not");
    std::string name = dotted_name();
    if (!is_known_test(name)) refuse(line, "test '" + name + "' is not supported");
    ExpressionPtr result = make(ExpressionKind::test, line, std::move(inner));
    result->text = std::move(name);
    const bool starts_operand = now().kind == TokenKind::string || now().kind == TokenKind::integer ||
                                now().kind == TokenKind::real || is_symbol("[") || is_symbol("{") ||
                                (now().kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_symbol("(")) {
      arguments(*result);
    } else if (starts_operand) {
      // One argument may stand without parentheses: "x is equalto 3". ("is", "if" and the like end the test.)
      if (is_name("is")) refuse(line, "tests cannot be chained with 'is'");
      result->positional.push_back(postfix(primary()));
      measure(*result, result->positional.back());
    }
    return negated ? make(ExpressionKind::logic_not, line, std::move(result)) : std::move(result);
  }

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int block_depth_ = 0;
  int nesting_ = 0;
  int loop_depth_ = 0;
  MacroSyntax* macro_ = nullptr;
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace keel::jinja

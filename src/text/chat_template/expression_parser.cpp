#include "text/chat_template/expression_parser.h"

#include "text/chat_template/filters.h"
#include "text/chat_template/tests.h"

namespace keel::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;

}  // namespace

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) {
  measure(parent, child);
  parent.children.push_back(std::move(child));
}

void ExpressionParser::measure(Expression& parent, const ExpressionPtr& child) {
  if (!child) return;
  parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxExpressionDepth) refuse(parent.line, "an expression is nested too deep");
}

ExpressionPtr ExpressionParser::constant(int line, Value value) {
  ExpressionPtr result = make(ExpressionKind::constant, line);
  result->constant = std::move(value);
  return result;
}

ExpressionPtr ExpressionParser::target(bool with_space) {
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

ExpressionPtr ExpressionParser::single_target(bool with_space) {
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

bool ExpressionParser::at_tuple_end() const {
  return now().kind == TokenKind::print_end || now().kind == TokenKind::block_end || is_symbol(")") ||
         is_name("recursive");
}

ExpressionPtr ExpressionParser::tuple_or_expression(bool with_conditional, bool in_parentheses) {
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

ExpressionPtr ExpressionParser::expression() {
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

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (is_name("or")) {
    const int line = take().line;
    left = make(ExpressionKind::logic_or, line, std::move(left), conjunction());
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (is_name("and")) {
    const int line = take().line;
    left = make(ExpressionKind::logic_and, line, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const int line = take().line;
  if (++nesting_ > kMaxExpressionDepth) refuse(line, "an expression is nested too deep");
  ExpressionPtr inner = negation();
  --nesting_;
  return make(ExpressionKind::logic_not, line, std::move(inner));
}

ExpressionPtr ExpressionParser::comparison() {
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

ExpressionPtr ExpressionParser::sum() {
  return binary({"+", "-"}, [&] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = now().line;
  ExpressionPtr first = product();
  if (!is_symbol("~")) return first;
  ExpressionPtr result = make(ExpressionKind::concat, line, std::move(first));
  while (skip_symbol("~")) adopt(*result, product());
  return result;
}

ExpressionPtr ExpressionParser::product() {
  return binary({"*", "/", "//", "%"}, [&] { return power(); });
}

ExpressionPtr ExpressionParser::power() {
  return binary({"**"}, [&] { return unary(true); });  // from left to right, unlike Python: Jinja's way
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
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

ExpressionPtr ExpressionParser::primary() {
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

ExpressionPtr ExpressionParser::list(int line) {
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

ExpressionPtr ExpressionParser::dict(int line) {
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

ExpressionPtr ExpressionParser::postfix(ExpressionPtr inner) {
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

ExpressionPtr ExpressionParser::subscript(int line, ExpressionPtr inner) {
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

void ExpressionParser::arguments(Expression& call) {
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

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr inner) {
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

std::string ExpressionParser::dotted_name() {
  std::string name = expect_identifier();
  while (skip_symbol(".")) name += "." + expect_identifier();
  return name;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr inner) {
  const int line = now().line;
  std::string name = dotted_name();
  if (!is_known_filter(name)) refuse(line, "filter '" + name + "' is not supported");
  ExpressionPtr result = make(ExpressionKind::filter, line, std::move(inner));
  result->text = std::move(name);
  if (is_symbol("(")) arguments(*result);
  return result;
}

ExpressionPtr ExpressionParser::test(int line, ExpressionPtr inner) {
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

}  // namespace keel::jinja

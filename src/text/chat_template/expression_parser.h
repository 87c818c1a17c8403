// Tokens to expressions; parser.cpp adds the statements around them.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/chat_template/lexer.h"
#include "text/chat_template/syntax.h"

namespace keel::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

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

  // A name, a tuple of names, or ns.attribute.
  ExpressionPtr target(bool with_space);
  // a, b, c without brackets, or one expression. In parentheses nothing at all is the empty tuple.
  ExpressionPtr tuple_or_expression(bool with_conditional = true, bool in_parentheses = false);
  ExpressionPtr expression();
  ExpressionPtr filter(ExpressionPtr inner);

  MacroSyntax* macro_ = nullptr;  // being read: learns which of caller, varargs and kwargs its body uses

 private:
  template <class... Children>
  ExpressionPtr make(ExpressionKind kind, int line, Children... children) {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->line = line;
    (adopt(*result, std::move(children)), ...);
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

  void adopt(Expression& parent, ExpressionPtr child);
  void measure(Expression& parent, const ExpressionPtr& child);
  ExpressionPtr constant(int line, Value value);
  ExpressionPtr single_target(bool with_space);
  bool at_tuple_end() const;
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr list(int line);
  ExpressionPtr dict(int line);
  ExpressionPtr postfix(ExpressionPtr inner);
  ExpressionPtr subscript(int line, ExpressionPtr inner);
  void arguments(Expression& call);
  ExpressionPtr filters_and_tests(ExpressionPtr inner);
  std::string dotted_name();
  ExpressionPtr test(int line, ExpressionPtr inner);

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace keel::jinja

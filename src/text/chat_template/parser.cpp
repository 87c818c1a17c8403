#include "text/chat_template/parser.h"

#include "text/chat_template/expression_parser.h"

namespace keel::jinja {
namespace {

constexpr int kMaxBlockDepth = 60;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Block run() { return statements({}); }

 private:
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

  int block_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace keel::jinja

// The parsed template: expressions and statements, each with its line.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_template/value.h"

namespace keel::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  constant,
  name,         // text
  list,         // children
  tuple,        // children
  dict,         // children: key, value, key, value, …
  attribute,    // children[0].text
  item,         // children[0][children[1]]
  slice,        // children[0][children[1]:children[2]:children[3]], each of the last three may be null
  call,         // children[0](…)
  filter,       // children[0] | text(…); children[0] is null at the head of a filter block
  test,         // children[0] is text(…)
  conditional,  // children[0] if children[1] else children[2]; the last may be null
  logic_and,
  logic_or,
  logic_not,
  negate,
  plus,
  binary,   // text is the operator
  concat,   // children joined by ~
  compare,  // children[0] operators[0] children[1] operators[1] …
  space_attribute,  // in targets only: text.attribute
};

struct Expression {
  ExpressionKind kind;
  int line = 0;
  int depth = 1;  // longest way down, bounded at parse
  std::string text;
  std::string attribute;
  Value constant;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  // Arguments of call, filter and test.
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Block = std::vector<Statement>;

// A macro, or the body of a call block.
struct MacroSyntax {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  std::shared_ptr<Block> body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

enum class StatementKind {
  text,       // text
  print,      // value
  condition,  // branches, then otherwise
  loop,       // for target in value [if filter] body, otherwise
  assign,     // target = value
  capture,    // target = body, through value (a filter) where given
  macro,      // macro
  call,       // value is a call, macro its caller
  filter,     // body through value
  with,       // targets = values, body
  scope,      // body in a scope of its own: {% generation %}
  stop,       // {% break %}
  skip,       // {% continue %}
};

struct Statement {
  StatementKind kind;
  int line = 0;
  std::string text;
  ExpressionPtr target, value, filter;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> bindings;  // of with
  Block body, otherwise;
  std::shared_ptr<MacroSyntax> macro;
};

}  // namespace keel::jinja

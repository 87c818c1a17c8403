// Walks the parsed template. Scopes are chains; a macro keeps the scope it was defined in and sees its latest values.
#include <algorithm>

#include "text/chat_template/filters.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/runtime.h"
#include "text/chat_template/tests.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

constexpr std::string_view kFunctions[] = {
    "range", "dict", "namespace", "raise_exception", "strftime_now", "cycler", "joiner"};

Value make_callable(CallableKind kind, std::string_view name, Value receiver = None{}) {
  auto callable = std::make_shared<Callable>();
  callable->kind = kind;
  callable->name = name;
  callable->receiver = std::move(receiver);
  callable->extent.contain(extent_of(callable->receiver));
  return callable;
}

// "'str object' has no attribute 'x'"
std::string missing_attribute(const Value& v, std::string_view name) {
  if (is_none(v)) return fmt::format("'None' has no attribute {}", repr(name));
  return fmt::format("'{} object' has no attribute {}", type_name(v), repr(name));
}

}  // namespace

Interpreter::~Interpreter() {
  // Spaces and macros may hold each other in rings and in long chains. Everything they hold moves into flat lists first,
  // so that no ring stays behind and no chain is destroyed by recursion.
  std::vector<Dict> attributes;
  for (const auto& space : spaces_) attributes.push_back(std::move(space->attributes));
  std::vector<std::shared_ptr<Scope>> scopes;
  for (const auto& macro : macros_) scopes.push_back(std::move(macro->scope));
}

std::string Interpreter::run(const Block& block, const Json& variables) {
  try {
    auto scope = std::make_shared<Scope>(nullptr);
    for (const auto& [name, value] : variables.items()) scope->set(name, from_json(value));
    // What the template sets at its top level hides the variables.
    auto top = std::make_shared<Scope>(scope);
    std::string out;
    run_block(block, top, out);
    return out;
  } catch (RenderError& error) {
    if (error.line == 0) error.line = line_;
    throw;
  }
}

// --- Statements ---

void Interpreter::append(std::string& out, std::string_view text) {
  budget_.make_bytes(text.size());
  if (out.size() + text.size() > Budget::kMaxOutputBytes) {
    raise("the output is larger than {} MiB", Budget::kMaxOutputBytes >> 20);
  }
  out += text;
}

Interpreter::Flow Interpreter::run_block(const Block& block, const std::shared_ptr<Scope>& scope, std::string& out) {
  if (++depth_ > Budget::kMaxDepth) raise("the template recurses too deep");
  Flow flow = Flow::on;
  for (const Statement& statement : block) {
    flow = run_statement(statement, scope, out);
    if (flow != Flow::on) break;
  }
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::run_statement(const Statement& s, const std::shared_ptr<Scope>& scope, std::string& out) {
  budget_.step();
  line_ = s.line;
  const auto run_inner = [&] {
    std::string inner;
    run_block(s.body, std::make_shared<Scope>(scope), inner);
    return inner;
  };
  switch (s.kind) {
    case StatementKind::text:
      append(out, s.text);
      return Flow::on;
    case StatementKind::print:
      append(out, print(evaluate(*s.value, scope)));
      return Flow::on;
    case StatementKind::condition:
      for (const auto& [test, body] : s.branches) {
        if (truth(evaluate(*test, scope))) return run_block(body, scope, out);
      }
      return run_block(s.otherwise, scope, out);
    case StatementKind::loop:
      return run_loop(s, scope, out);
    case StatementKind::assign:
      assign(*s.target, evaluate(*s.value, scope), *scope);
      return Flow::on;
    case StatementKind::capture: {
      Value captured = text(run_inner());
      if (s.value) captured = filter_block(*s.value, captured, scope);
      assign(*s.target, std::move(captured), *scope);
      return Flow::on;
    }
    case StatementKind::macro:
      scope->set(s.macro->name, make_macro(s.macro, scope));
      return Flow::on;
    case StatementKind::call: {
      const Value callee = evaluate(*s.value->children[0], scope);
      Arguments arguments = evaluate_arguments(*s.value, scope);
      arguments.named.emplace_back("caller", make_macro(s.macro, scope));
      append(out, print(call(callee, arguments)));
      return Flow::on;
    }
    case StatementKind::filter:
      append(out, print(filter_block(*s.value, text(run_inner()), scope)));
      return Flow::on;
    case StatementKind::with: {
      // The values are those outside: the names hide them only in the body.
      auto inner = std::make_shared<Scope>(scope);
      for (const auto& [name, value] : s.bindings) assign(*name, evaluate(*value, scope), *inner);
      return run_block(s.body, inner, out);
    }
    case StatementKind::scope:
      append(out, run_inner());
      return Flow::on;
    case StatementKind::stop:
      return Flow::stop;
    case StatementKind::skip:
      return Flow::skip;
  }
  check(false, "every statement kind is handled");
  return Flow::on;
}

Interpreter::Flow Interpreter::run_loop(const Statement& s, const std::shared_ptr<Scope>& scope, std::string& out) {
  const Value iterated = evaluate(*s.value, scope);
  auto loop = std::make_shared<Loop>();
  loop->extent.contain(extent_of(iterated));
  auto elements = std::make_shared<Values>(this->elements(iterated));
  auto filter_scope = std::make_shared<Scope>(scope);
  loop->pull = [this, elements, filter_scope, &s, i = std::size_t{0}]() mutable -> std::optional<Value> {
    while (i < elements->size()) {
      const Value& element = (*elements)[i++];
      if (!s.filter) return element;
      budget_.step();
      assign(*s.target, element, *filter_scope);
      if (truth(evaluate(*s.filter, filter_scope))) return element;
    }
    return std::nullopt;
  };
  if (!s.filter) loop->length = static_cast<std::int64_t>(elements->size());

  bool completed = false;
  while (loop->next()) {
    budget_.step();
    auto inner = std::make_shared<Scope>(scope);
    inner->set("loop", loop);
    assign(*s.target, *loop->current, *inner);
    const Flow flow = run_block(s.body, inner, out);
    completed |= flow == Flow::on;
    if (flow == Flow::stop) break;
  }
  loop->pull = nullptr;  // it refers to this call
  // As in Jinja, `else` is for loops of which no turn came to its end, by break and continue too.
  return completed ? Flow::on : run_block(s.otherwise, scope, out);
}

void Interpreter::assign(const Expression& target, Value value, Scope& scope) {
  if (target.kind == ExpressionKind::name) {
    scope.set(target.text, std::move(value));
    return;
  }
  if (target.kind == ExpressionKind::space_attribute) {
    const Value* found = scope.find(target.text);
    Space* space = found ? object<Space>(*found) : nullptr;
    if (!space) raise("cannot assign attribute on non-namespace object");
    if (target.attribute.starts_with('_')) raise("namespace attribute '{}' starts with an underscore", target.attribute);
    space->attributes.set(text(target.attribute), std::move(value));
    return;
  }
  const Values parts = elements(value);
  if (parts.size() != target.children.size()) {
    raise("cannot unpack {} values into {} names", parts.size(), target.children.size());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) assign(*target.children[i], parts[i], scope);
}

std::shared_ptr<Callable> Interpreter::make_macro(std::shared_ptr<const MacroSyntax> syntax, std::shared_ptr<Scope> scope) {
  auto macro = std::make_shared<Callable>();
  macro->kind = CallableKind::macro;
  macro->name = syntax->name;
  macro->macro = std::move(syntax);
  macro->scope = std::move(scope);
  budget_.make_elements(1);
  macros_.push_back(macro);
  return macro;
}

// --- Expressions ---

std::string Interpreter::print(const Value& v) {
  budget_.walk(v);
  return to_string(v);
}

Values Interpreter::elements(const Value& v) {
  Values out = iterate(v);
  budget_.make_elements(out.size());
  return out;
}

Value Interpreter::evaluate(const Expression& e, const std::shared_ptr<Scope>& scope) {
  budget_.step();
  if (++depth_ > Budget::kMaxDepth) raise("the template recurses too deep");
  const int outer_line = std::exchange(line_, e.line);
  Value result = evaluate_unguarded(e, scope);
  line_ = outer_line;
  --depth_;
  return result;
}

Value Interpreter::evaluate_unguarded(const Expression& e, const std::shared_ptr<Scope>& scope) {
  const auto child = [&](std::size_t i) { return evaluate(*e.children[i], scope); };
  switch (e.kind) {
    case ExpressionKind::constant:
      return e.constant;
    case ExpressionKind::name:
      return evaluate_name(e.text, *scope);
    case ExpressionKind::list:
      return make_list(evaluate_all(e.children, scope));
    case ExpressionKind::tuple:
      return make_tuple(evaluate_all(e.children, scope));
    case ExpressionKind::dict: {
      Dict dict;
      budget_.make_elements(e.children.size());
      for (std::size_t i = 0; i < e.children.size(); i += 2) {
        Value key = child(i);
        dict.set(key, child(i + 1));
      }
      return make_dict(std::move(dict));
    }
    case ExpressionKind::attribute:
      return attribute(child(0), e.text);
    case ExpressionKind::item: {
      const Value container = child(0);
      return item(container, child(1));
    }
    case ExpressionKind::slice:
      return evaluate_slice(e, scope);
    case ExpressionKind::call: {
      const Value callee = child(0);
      return call(callee, evaluate_arguments(e, scope));
    }
    case ExpressionKind::filter: {
      const Value input = child(0);
      return apply_filter(*this, e.text, input, evaluate_arguments(e, scope));
    }
    case ExpressionKind::test: {
      const Value tested = child(0);
      return apply_test(*this, e.text, tested, evaluate_arguments(e, scope));
    }
    case ExpressionKind::conditional:
      if (truth(child(1))) return child(0);
      if (e.children[2]) return child(2);
      return undefined(fmt::format("the inline if-expression on line {} evaluated to false and no else section was defined", e.line));
    case ExpressionKind::logic_and: {
      Value left = child(0);
      return truth(left) ? child(1) : left;
    }
    case ExpressionKind::logic_or: {
      Value left = child(0);
      return truth(left) ? left : child(1);
    }
    case ExpressionKind::logic_not:
      return !truth(child(0));
    case ExpressionKind::negate:
      return negated(child(0));
    case ExpressionKind::plus:
      return plus(child(0));
    case ExpressionKind::binary: {
      const Value left = child(0);
      return binary_operation(*this, e.text, left, child(1));
    }
    case ExpressionKind::concat: {
      std::string joined;
      for (const Value& part : evaluate_all(e.children, scope)) append(joined, print(part));
      return text(std::move(joined));
    }
    case ExpressionKind::compare:
      return evaluate_compare(e, scope);
    case ExpressionKind::space_attribute:
      break;
  }
  check(false, "every expression kind is handled");
  return None{};
}

Value Interpreter::evaluate_name(const std::string& name, const Scope& scope) {
  if (const Value* found = scope.find(name)) return *found;
  if (std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions)) {
    return make_callable(CallableKind::function, name);
  }
  return undefined(fmt::format("{} is undefined", repr(std::string_view(name))));
}

Value Interpreter::evaluate_compare(const Expression& e, const std::shared_ptr<Scope>& scope) {
  Value left = evaluate(*e.children[0], scope);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.children[i + 1], scope);
    const std::string& symbol = e.operators[i];
    bool holds = false;
    if (symbol == "in" || symbol == "not in") {
      holds = contains(*this, right, left) == (symbol == "in");
    } else {
      // Both sides are walked together, so the lighter one bounds the cost.
      budget_.step(std::min(extent_of(left).weight, extent_of(right).weight));
      if (symbol == "==") holds = equal(left, right);
      if (symbol == "!=") holds = !equal(left, right);
      if (symbol == "<") holds = less(left, right);
      if (symbol == ">") holds = less(right, left);
      if (symbol == "<=") holds = less(left, right) || equal(left, right);
      if (symbol == ">=") holds = less(right, left) || equal(left, right);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_slice(const Expression& e, const std::shared_ptr<Scope>& scope) {
  const Value container = evaluate(*e.children[0], scope);
  Value parts[3];
  for (std::size_t i = 0; i < 3; ++i) parts[i] = e.children[i + 1] ? evaluate(*e.children[i + 1], scope) : Value(None{});
  return sliced(*this, container, parts[0], parts[1], parts[2]);
}

// The filters of a filter block or a captured block, whose innermost takes `input`.
Value Interpreter::filter_block(const Expression& e, const Value& input, const std::shared_ptr<Scope>& scope) {
  const Value inner = e.children[0] ? filter_block(*e.children[0], input, scope) : input;
  return apply_filter(*this, e.text, inner, evaluate_arguments(e, scope));
}

Arguments Interpreter::evaluate_arguments(const Expression& e, const std::shared_ptr<Scope>& scope) {
  Arguments arguments;
  arguments.positional = evaluate_all(e.positional, scope);
  for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value, scope));
  return arguments;
}

Values Interpreter::evaluate_all(const std::vector<ExpressionPtr>& list, const std::shared_ptr<Scope>& scope) {
  Values values;
  values.reserve(list.size());
  for (const ExpressionPtr& e : list) values.push_back(evaluate(*e, scope));
  budget_.make_elements(values.size());
  return values;
}

// --- Attributes, items ---

Value Interpreter::method_or_undefined(const Value& v, std::string_view name) {
  switch (find_method(v, name)) {
    case MethodStatus::known:
      return make_callable(CallableKind::method, name, v);
    case MethodStatus::unsafe:
      return undefined(fmt::format("access to attribute {} of '{}' object is unsafe.", repr(name), type_name(v)));
    case MethodStatus::unsupported:
      raise("attribute {} of '{}' is not supported", repr(name), type_name(v));
    case MethodStatus::absent:
      break;
  }
  return undefined(missing_attribute(v, name));
}

Value Interpreter::attribute(const Value& v, std::string_view name) {
  if (const auto* nothing = std::get_if<Undefined>(&v)) raise("{}", *nothing->message);
  if (const Dict* dict = as_dict(v)) {
    if (find_method(v, name) == MethodStatus::absent) {
      if (const Value* found = dict->find(name)) return *found;
    }
    return method_or_undefined(v, name);
  }
  if (const Space* space = object<Space>(v)) {
    const Value* found = space->attributes.find(name);
    return found ? *found : undefined(missing_attribute(v, name));
  }
  if (Loop* loop = object<Loop>(v)) {
    if (name == "index") return loop->index0 + 1;
    if (name == "index0") return loop->index0;
    if (name == "first") return loop->index0 == 0;
    if (name == "last") return !loop->peek().has_value();
    if (name == "length") return loop->total();
    if (name == "revindex") return loop->total() - loop->index0;
    if (name == "revindex0") return loop->total() - loop->index0 - 1;
    if (name == "depth") return std::int64_t{1};
    if (name == "depth0") return std::int64_t{0};
    if (name == "previtem") return loop->before ? *loop->before : undefined("there is no previous item");
    if (name == "nextitem") return loop->peek() ? *loop->peek() : undefined("there is no next item");
  }
  if (const Callable* cycler = object<Callable>(v); cycler && cycler->kind == CallableKind::cycler && name == "current") {
    return cycler->items[cycler->position];
  }
  return method_or_undefined(v, name);
}

Value Interpreter::item(const Value& v, const Value& key) {
  if (const auto* nothing = std::get_if<Undefined>(&v)) raise("{}", *nothing->message);
  if (const Dict* dict = as_dict(v)) {
    budget_.walk(key);
    if (const Value* found = dict->find(key)) return *found;
  }
  const Sequence* sequence = as_sequence(v);
  const bool indexable = sequence && (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple ||
                                      sequence->kind == SequenceKind::range);
  if (const auto index = as_integer(key); index && (indexable || is_string(v))) {
    const std::string* string = as_string(v);
    if (string) budget_.walk(v);
    const std::int64_t size = length(v);
    const std::int64_t place = *index < 0 ? *index + size : *index;
    if (place >= 0 && place < size) {
      if (indexable) return sequence->elements[static_cast<std::size_t>(place)];
      return sliced(*this, v, place, place + 1, None{});
    }
  }
  if (const std::string* name = as_string(key)) {
    // What is no item may still be an attribute.
    return as_dict(v) ? method_or_undefined(v, *name) : attribute(v, *name);
  }
  return undefined(fmt::format("{} object has no element {}", type_name(v), extent_of(key).depth == 0 ? repr(key) : "of that key"));
}

}  // namespace keel::jinja

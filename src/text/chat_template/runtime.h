// What a render needs beside the values: limits, arguments, scopes, things that can be called, loops.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/syntax.h"
#include "text/chat_template/value.h"

namespace keel::jinja {

// Bounds a render's time and memory, whatever the template and the messages. One step is some tens of nanoseconds.
class Budget {
 public:
  static constexpr std::uint64_t kMaxSteps = 20'000'000;
  static constexpr std::uint64_t kMaxBytes = 512u << 20;   // of all text and lists made, kept or not
  static constexpr std::uint64_t kMaxOutputBytes = 64u << 20;
  static constexpr int kMaxDepth = 600;                    // of evaluation: macros that call macros

  void step(std::uint64_t count = 1);
  void make_bytes(std::uint64_t count);
  void make_elements(std::uint64_t count);
  // The cost of walking through all of a value.
  void walk(const Value& v) { step(extent_of(v).weight); }
  // The cost of looking for `needle` in a text: long needles can make a search slow.
  void search(std::size_t text_bytes, std::size_t needle_bytes);

 private:
  std::uint64_t steps_ = 0;
  std::uint64_t bytes_ = 0;
};

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;

  // One entry a parameter name, absent where not given. Raises for too few, too many and unknown ones.
  std::vector<std::optional<Value>> bind(std::string_view callee,
                                         std::initializer_list<std::string_view> parameters,
                                         std::size_t required) const;
};

struct Scope {
  explicit Scope(std::shared_ptr<Scope> parent_) : parent(std::move(parent_)) {}
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;  // here or outward
};

enum class CallableKind { function, method, macro, cycler, joiner };
struct Callable {
  CallableKind kind;
  std::string name;
  Value receiver;                            // of a method
  std::shared_ptr<const MacroSyntax> macro;  // of a macro, with the scope it was defined in
  std::shared_ptr<Scope> scope;
  Values items;              // of a cycler; of a joiner its separator
  std::size_t position = 0;  // of a cycler; of a joiner: calls so far
  Extent extent{1};
};

// The `loop` of a for statement. Elements are pulled one by one, so a filter sees what the body did before.
struct Loop {
  std::function<std::optional<Value>()> pull;
  std::int64_t index0 = -1;
  std::optional<Value> after;  // pulled, not yet entered
  std::optional<Value> before, current;
  std::optional<std::int64_t> length;
  std::optional<Values> last_changed;
  Extent extent{1};

  bool next();  // enters the next element, false at the end
  const std::optional<Value>& peek();
  std::int64_t total();
};

class Interpreter {
 public:
  explicit Interpreter(std::time_t now) : now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string run(const Block& block, const Json& variables);

  Budget& budget() { return budget_; }
  Value attribute(const Value& v, std::string_view name);
  Value item(const Value& v, const Value& key);
  Value call(const Value& callee, const Arguments& arguments);
  std::string print(const Value& v);  // str(v), paid for
  Values elements(const Value& v);    // iterate(v), paid for

 private:
  enum class Flow { on, stop, skip };

  Flow run_block(const Block& block, const std::shared_ptr<Scope>& scope, std::string& out);
  Flow run_statement(const Statement& statement, const std::shared_ptr<Scope>& scope, std::string& out);
  Flow run_loop(const Statement& statement, const std::shared_ptr<Scope>& scope, std::string& out);
  void append(std::string& out, std::string_view text);
  void assign(const Expression& target, Value value, Scope& scope);
  std::shared_ptr<Callable> make_macro(std::shared_ptr<const MacroSyntax> syntax, std::shared_ptr<Scope> scope);

  Value evaluate(const Expression& e, const std::shared_ptr<Scope>& scope);
  Value evaluate_unguarded(const Expression& e, const std::shared_ptr<Scope>& scope);
  Value evaluate_name(const std::string& name, const Scope& scope);
  Value evaluate_compare(const Expression& e, const std::shared_ptr<Scope>& scope);
  Value evaluate_slice(const Expression& e, const std::shared_ptr<Scope>& scope);
  Value filter_block(const Expression& e, const Value& input, const std::shared_ptr<Scope>& scope);
  Arguments evaluate_arguments(const Expression& e, const std::shared_ptr<Scope>& scope);
  Values evaluate_all(const std::vector<ExpressionPtr>& list, const std::shared_ptr<Scope>& scope);

  Value call_function(const std::string& name, const Arguments& arguments);
  Value call_macro(const Callable& macro, const Arguments& arguments);
  Value method_or_undefined(const Value& v, std::string_view name);

  std::time_t now_;
  Budget budget_;
  int depth_ = 0;
  int line_ = 0;  // of what is being evaluated, for messages
  // Kept to the end: both can lead back to themselves, and are taken apart in the destructor.
  std::vector<std::shared_ptr<Space>> spaces_;
  std::vector<std::shared_ptr<Callable>> macros_;
};

}  // namespace keel::jinja

#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "base/random.h"

namespace keel {
namespace {

std::string refusal(std::string_view source) {
  try {
    ChatTemplate chat_template(source);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string failure(std::string_view source, const Json& variables = Json::object()) {
  const Result<std::string> rendered = ChatTemplate(source).render(variables);
  return rendered.ok() ? "" : rendered.error();
}

TEST(ChatTemplate, NamesTheUnknownConstructAndItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n{% include 'x' %}", "line 2: {% include %} is not supported"},
      {"{% block b %}{% endblock %}", "line 1: {% block %} is not supported"},
      {"\n\n{{ x | urlize }}", "line 3: filter 'urlize' is not supported"},
      {"{{ x is escaped }}", "line 1: test 'escaped' is not supported"},
      {"{{ f(*x) }}", "'*' and '**' arguments are not supported"},
      {"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{{ 0x10 }}", "hexadecimal"},
      {"{% if x %}", "{% endif %} is missing"},
      {"{% endif %}", "{% endif %} ends nothing"},
      {"{{ x", "a tag has no end"},
      {"{{ 'x }}", "a string has no end"},
      {"{# x", "a comment has no end"},
      {"{{ x ? }}", "unexpected character '?'"},
      {"{{ (x }}", "expected"},
      {"{{ x ) }}", "unexpected ')'"},
      {"{{ }}", "expected an expression"},
      {"{% break %}", "outside a loop"},
      {"{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "outside a loop"},
      {"{% set true = 1 %}", "cannot assign to 'true'"},
      {"{{ 99999999999999999999 }}", "does not fit 64 bits"},
      {"\xff", "not valid UTF-8"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_NE(refusal(source).find(message), std::string::npos) << source << " gave: " << refusal(source);
  }
}

TEST(ChatTemplate, NamesTheLineOfARunTimeMistake) {
  EXPECT_EQ(failure("a\n{{ x.y }}"), "chat template, line 2: 'x' is undefined");
  EXPECT_EQ(failure("a\n{% if true %}\n{{ [1] + 1 }}{% endif %}"),
            "chat template, line 3: unsupported operand type(s) for +: 'list' and 'int'");
  EXPECT_EQ(failure("{{ [1] | map('urlize') | list }}"), "chat template, line 1: filter 'urlize' is not supported");
  EXPECT_EQ(failure("{{ 'a'.encode() }}"), "chat template, line 1: attribute 'encode' of 'str' is not supported");
  EXPECT_EQ(failure("{{ 9223372036854775807 + 1 }}"), "chat template, line 1: an integer does not fit 64 bits");
}

TEST(ChatTemplate, PassesOnTheTemplatesOwnMessageAlone) {
  EXPECT_EQ(failure("\n{{ raise_exception('Roles must alternate') }}"), "Roles must alternate");
}

TEST(ChatTemplate, RefusesIntegersThatItWouldHaveToRound) {
  EXPECT_NE(failure("{{ x }}", {{"x", 18446744073709551615u}}).find("does not fit"), std::string::npos);
}

TEST(ChatTemplate, RefusesTextThatIsNotUtf8) {
  EXPECT_NE(failure("{{ x }}", {{"x", "\xff"}}).find("UTF-8"), std::string::npos);
}

TEST(ChatTemplate, RefusesToEscapeSilently) {
  EXPECT_NE(failure("{{ ('a' | safe) + '<' }}").find("not supported"), std::string::npos);
}

// Each would take minutes, gigabytes or the whole stack without a limit.
TEST(ChatTemplate, BoundsTimeMemoryAndDepth) {
  const std::string lots = "{% for a in range(100000) %}{% for b in range(100000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::vector<std::string> hostile = {
      lots + ends,
      lots + "{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}" + ends,
      "{{ 'x' * 10000000000 }}",
      "{{ ('x' * 1000000) * 1000000 }}",
      "{{ [1] * 10000000000 }}",
      "{{ 'x'.center(10000000000) }}",
      "{{ 'x'.zfill(10000000000) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 2 ** 1000000000 }}",
      "{{ [1] | tojson(indent=1000000000) }}",
      "{{ 'a' | indent(1000000000) }}",
      "{{ [1] | batch(10000000000, 0) | list }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      // Ten thousand copies of a text in a text, and so on.
      "{% set ns = namespace(x='ab') %}{% for i in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x='ab') %}{% for i in range(1000) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
      "{% set ns = namespace(x='ab') %}{% for i in range(1000) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
      // Small in memory, exponential to walk.
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
      "{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace(x=(1,)) %}{% for i in range(100) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
      "{% set ns = namespace(x=(1,)) %}{% for i in range(100) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ [ns.x] | unique | list }}",
      // Deep chains, which would be destroyed by recursion.
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
      "{% set ns = namespace() %}{% for i in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor %}{% endfor %}",
      // Quadratic searches.
      "{% set a = 'a' * 10000000 %}{% for i in range(100000) %}{{ 'ab' in a }}{% endfor %}",
      "{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 + 'b' %}{% for i in range(100) %}{{ b in a }}{{ a.find(b) }}{% endfor %}",
      "{% set a = 'é' * 1000000 %}{% for i in range(100000) %}{{ a | length }}{{ a[5] }}{% endfor %}",
      "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}{{ a.upper() | length }}{% endfor %}",
      "{% set a = range(100000) | list %}{% for i in range(100000) %}{{ -1 in a }}{{ a.count(1) }}{% endfor %}",
  };
  for (const std::string& source : hostile) {
    const std::clock_t start = std::clock();  // this process's own time: others may keep the machine busy
    EXPECT_NE(failure(source), "") << source;
    EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC) << source;
  }
}

TEST(ChatTemplate, TakesRingsApart) {
  // A leak here is the address sanitizer's to find.
  EXPECT_EQ(failure("{% set ns = namespace() %}{% set ns.self = ns %}{% set ns.other = namespace(back=ns) %}"), "");
  EXPECT_EQ(failure("{% macro m() %}{% endmacro %}{% set f = m %}"), "");
  // Each macro's scope holds the macro before.
  EXPECT_EQ(failure("{% set ns = namespace() %}{% for i in range(100000) %}{% set before = ns.m %}"
                    "{% macro m() %}{{ before }}{% endmacro %}{% set ns.m = m %}{% endfor %}"),
            "");
}

TEST(ChatTemplate, RefusesDeepNesting) {
  const auto repeat = [](std::string_view part, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += part;
    return out;
  };
  for (const std::string& source : {"{{ " + repeat("(", 100000) + " }}", "{{ " + repeat("not ", 100000) + "x }}",
                                    "{{ " + repeat("-", 100000) + "x }}", "{{ x" + repeat(".a", 100000) + " }}",
                                    "{{ x" + repeat(" | list", 100000) + " }}", "{{ 1" + repeat(" + 1", 100000) + " }}",
                                    "{{ " + repeat("[", 100000) + " }}", "{{ x" + repeat(" if x else x", 100000) + " }}",
                                    repeat("{% if x %}", 100000), repeat("{% for x in y %}", 100000), "{% set " + repeat("(", 100000)}) {
    EXPECT_NE(refusal(source), "") << source.substr(0, 40);
  }
  Json deep = Json::array();
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_NE(failure("{{ x }}", {{"x", deep}}).find("nested"), std::string::npos);
}

TEST(ChatTemplate, HandlesALongConversation) {
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'a' + i % 26)}});
  }
  const ChatTemplate chat_template(
      "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' and not m.content.startswith('<t>') %}"
      "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
      "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.content.split('</think>')[-1] | trim) + '\n' }}"
      "{% if m == messages[-1] %}{{ messages | length }}{% endif %}{% endfor %}{{ ns.last }}");
  const Result<std::string> rendered = chat_template.render({{"messages", messages}});
  ASSERT_TRUE(rendered.ok()) << rendered.error();
  EXPECT_TRUE(rendered.value().ends_with("20001998"));
}

// Pieces of templates in any order must end in a rendering, a refusal or a failure, never in a crash.
TEST(ChatTemplate, SurvivesRandomTemplates) {
  const std::vector<std::string> pieces = {
      "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", " ", "\n", "if", "else", "elif", "endif", "for", "in", "endfor", "set", "endset",
      "macro", "endmacro", "(", ")", "[", "]", "{", "}", "'a'", "\"b", "x", "messages", ".", ",", ":", "|", "is", "not", "and", "1",
      "2.5", "==", "<", "*", "/", "//", "%", "**", "~", "loop", "range", "namespace", "tojson", "length", "defined", "é", "\\", "raw",
      "endraw", "break", "=", "caller", "call", "endcall", "map", "sort", "first"};
  std::uint64_t drawn = 0;
  const auto draw = [&](std::uint64_t below) { return random_u64(20260101, drawn++) % below; };
  for (int i = 0; i < 20000; ++i) {
    std::string source = i % 2 ? "{{ " : "{% ";
    const std::uint64_t count = 1 + draw(14);
    for (std::uint64_t j = 0; j < count; ++j) source += pieces[draw(pieces.size())] + (draw(2) ? " " : "");
    source += i % 2 ? " }}" : " %}{% endif %}";
    try {
      (void)ChatTemplate(source).render({{"x", {1, "a", nullptr}}, {"messages", {{{"role", "user"}}}}});
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace keel

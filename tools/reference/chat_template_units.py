"""Small templates, each for one thing that a template language can get wrong, with the variables they are rendered with."""

ITEMS = {"items": [{"n": "b", "v": 2}, {"n": "A", "v": 10}, {"n": "c"}], "word": "Grüße, Straße", "text": "  a b  c\n d  ",
         "d": {"x": 1, "b": None, "items": "shadowed", "get": 7, "keys2": [1, 2.0, True]}, "n": 5, "none": None,
         "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]}

# {{ expression }} of each, with ITEMS.
EXPRESSIONS = r"""
1 + 2 * 3 ** 2
2 ** 3 ** 2
-2 ** 2
(1 + 2) * 3
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
-7.5 % 2
7.5 // 2
1 / 3
4 / 2
2 ** -1
2 ** 0.5
1e3
1.5e-7
1e16
123456789012345.0
0.1 + 0.2
100000000000000000000.0
1_000
3 / 0
3 % 0
3 // 0
9223372036854775807
-9223372036854775807 - 1
true + 1
true
none
[1, 2.5, "x", 'it\'s', none, true, [], {}, (1,), (1, 2), ()]
{"a": 1, 'b': [2], 3: "c", 1.5: 2, none: 1, true: 2}
"quote \" and ' both"
["quote \" and ' both", "only '", 'only "', "tab\tnl\n\\", "é\u200b\x07𝄞\xa0"]
'a' 'b' "c"
"a" ~ 1 ~ none ~ 2.0 ~ undefined_thing
"a" + 1
1 + "a"
"ab" * 3
3 * "ab"
[1] * 2 + [3]
(1, 2) + (3,)
[1] + (2,)
"x" if n > 3 else "y"
"x" if n > 9
("x" if n > 9) is defined
"x" if n > 9 else "y" if n > 7 else "z"
1 < 2 < 3
1 < 3 < 2
1 == 1.0
true == 1
"a" == 1
"1" != 1
none == false
[1, 2] == [1, 2.0]
{"a": 1, "b": 2} == {"b": 2, "a": 1}
(1, 2) == [1, 2]
"a" < "b"
"Z" < "a"
[1, 2] < [1, 3]
1 < "a"
none < 1
not 1 == 2
not true or true
true or false and false
0 or "" or none or []
1 and "x"
"a" in "abc"
"a" not in "abc"
1 in [1, 2]
1.0 in [1, 2]
"x" in d
"z" in d
none in [none]
1 in 5
1 in "a"
n in undefined_thing
undefined_thing in [1]
undefined_thing == undefined_other
undefined_thing != 1
undefined_thing
undefined_thing.x
undefined_thing["x"]
undefined_thing + 1
undefined_thing()
undefined_thing|length
undefined_thing|list
undefined_thing|default("dflt")
d.zzz
d.zzz.y
d.zzz|default("v")
d.zzz is defined
none.x
none.x is defined
none["x"] is defined
none|default("v")
none|default("v", true)
""|default("v", true)
d.x
d["x"]
d["items"]
d.items()
d.items() | list
d.get("x")
d.get("zz")
d.get("zz", 5)
d["get"]
d.keys()
d.values() | list
d.keys() | list
d.keys2
d.pop
d.pop("x")
d.update({"q": 1})
d.__class__
d.__class__ is defined
"".__class__.mro()
[1].append(2)
[1].append is defined
d | items | list
d | length
d | dictsort
{"b": 1, "A": 2, "c": 0} | dictsort
{"b": 1, "A": 2, "c": 0} | dictsort(true)
{"b": 1, "A": 2, "c": 0} | dictsort(by="value", reverse=true)
d | list
[1,2,3][0]
[1,2,3][-1]
[1,2,3][5]
[1,2,3][5] is defined
[1,2,3].0
[1,2,3][1:]
[1,2,3][:-1]
[1,2,3][::-1]
[1,2,3,4,5][1:4:2]
[1,2,3,4,5][-1:0:-2]
[1,2,3][5:]
[1,2,3][::0]
"héllo"[1]
"héllo"[-4:]
"héllo"[::-1]
"héllo"[10]
"abc"[1:2]
n[1:]
d[1:]
(1,2,3)[1:]
5[0]
messages[0].role
messages[0]['role']
messages[-1].content
messages[1:] | length
messages | map(attribute="role") | list
messages | map(attribute="role") | join(", ")
messages | map(attribute="zz", default="-") | list
messages | selectattr("role", "equalto", "user") | list | length
messages | selectattr("role", "eq", "user") | map(attribute="content") | list
messages | rejectattr("role", "equalto", "user") | map(attribute="content") | join
messages | selectattr("role", "in", ["assistant"]) | list
messages | selectattr("nothing") | list
messages | selectattr("role") | list | length
(messages | selectattr("role", "equalto", "zz") | list)[0]
messages | selectattr("role", "equalto", "user") | length
(messages | selectattr("role", "equalto", "zz")) and "truthy"
messages | selectattr("role", "equalto", "user") | first
messages | selectattr("role", "equalto", "user") | last
items | map(attribute="v") | select("defined") | sum
[1, 2, 3, 4] | select("odd") | list
[1, 2, 3, 4] | reject("odd") | list
[0, 1, "", "a"] | select | list
[0, 1, "", "a"] | reject | list
["a", "b"] | map("upper") | list
["a", "b"] | map("replace", "a", "c") | join("-")
[1, 2, 3] | select("gt", 1) | list
[1, 2, 3] | select("lessthan", 3) | list
[1, 2, 3] | select(">=", 2) | list
[[1, 2], [3]] | map("length") | list
[[1, 2], [3]] | map("first") | list
[3, 1, 2] | sort
[3, 1, 2] | sort(reverse=true)
["b", "A", "c"] | sort
["b", "A", "c"] | sort(case_sensitive=true)
items | sort(attribute="n") | map(attribute="n") | list
messages | sort(attribute="role,content") | map(attribute="content") | list
[1, "a"] | sort
[1, 1, 2, "a", "A"] | unique | list
[1, 2, 3] | reverse | list
"abc" | reverse
[1, 2, 3] | first
[] | first
[1, 2, 3] | last
"abc" | last
[] | last is defined
[1, 2.5] | sum
[3, 1] | min
["b", "A"] | min
[3, 1] | max
[] | max
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3] | batch(2, "-") | list
-3 | abs
"-3" | int | abs
3.7 | int
"3.7" | int
" 42 " | int
"x" | int
"x" | int(7)
"x" | int(default=8)
none | int
true | int
"1_000" | int
"1.5" | float
"x" | float
3 | float
3.14159 | round(2)
2.5 | round
3.5 | round
2.675 | round(2)
2.1 | round(0, "ceil")
7 | round
"hello world" | capitalize
"HELLO wORLD" | title
"it's a-b (c d)" | title
"it's a-b (c d)".title()
"hello" | upper
word | upper
word | lower
word.upper()
word.title()
word.swapcase()
"ΑΣ ΣΑ" | lower
"ǆ".title()
"ﬁx" | capitalize
word | length
text | trim
text.strip()
text.lstrip()
text.rstrip()
"xxaxx" | trim("x")
"xxaxx".strip("x")
"\u00a0a\u2003" | trim
"a" | indent
"a\nb\n\nc\n" | indent
"a\nb\n\nc" | indent(2, true)
"a\nb\n\nc" | indent(2, true, true)
"a\nb" | indent("> ")
"a\nb" | indent(width=2, first=true)
"a b c" | replace(" ", "_")
"a b c" | replace(" ", "_", 1)
"abc" | replace("", "-")
123 | replace(2, "x")
"a b c".replace(" ", "")
"aaa".replace("a", "b", 2)
text.split()
text.split(" ")
"a,b,,c".split(",")
"a,b,,c".split(",", 1)
"a,b,,c".rsplit(",", 1)
"  a b c ".split(none, 1)
"  a b c ".rsplit(none, 1)
"".split()
"".split(",")
"a".split("")
"a\nb\r\nc\u2028d".splitlines()
"a\nb\n".splitlines(true)
"k=v=w".partition("=")
"k=v=w".rpartition("=")
"kv".partition("=")
"abc".startswith("ab")
"abc".startswith(("x", "a"))
"abc".endswith("bc")
"abc".startswith("b", 1)
"abcabc".find("c")
"abcabc".rfind("c")
"abc".find("z")
"abc".index("z")
"héé".find("é", 2)
"abcabc".count("bc")
"aaa".count("")
", ".join(["a", "b"])
", ".join([1])
"-".join("abc")
"abc".removeprefix("ab")
"abc".removesuffix("bc")
"5".zfill(3)
"-5".zfill(4)
"ab".center(7, "*")
"abc".center(6, "*")
"ab".ljust(4) ~ "|"
"ab".rjust(4) ~ "|"
"abc" | center(8) ~ "|"
"123".isdigit()
"".isdigit()
"abc".isalpha()
"a1".isalnum()
"ABC".isupper()
"abc1".islower()
" ".isspace()
"é".isascii()
"abc".nothing
"abc".nothing is defined
"%s is %d years, %.2f %5s|%-5s|%05d %x %r %%" | format("Bob", 42, 1.5, "a", "b", 7, 255, "q")
"%s" % "x"
"%s %s" % ("a", 1)
"%(a)s" % {"a": 1}
"%s" % (1, 2)
"%d" % "x"
"%+d % d" % (1, 2)
"{} {}".format(1, "a")
"{0} {1} {0}".format("x", "y")
"{name}!".format(name="z")
"{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}".format("a", "b", "c", 42, 3.14159, 1234567)
"{!r}".format("a")
"{{}}".format()
"{} {}".format(1)
d | tojson
items | tojson
"é<>&'\"\\/\u2028\n\t\x01\x7f" | tojson
"é𝄞\x7f" | tojson(ensure_ascii=true)
d | tojson(indent=2)
{"a": [], "b": {}, "c": [1, {"d": 2}]} | tojson(indent=4)
[1, [2, 3]] | tojson(indent=0)
[1, [2, 3]] | tojson(indent="--")
{"b": 1, "a": 2} | tojson(sort_keys=true)
{"b": [1, 2]} | tojson(separators=(",", ":"))
{"b": [1, 2]} | tojson(indent=1, separators=(", ", " : "))
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
[1.0, 1e100, 1e-5, 0.1, 123456789.123, -0.0, 1e22] | tojson
(1, 2) | tojson
undefined_thing | tojson
(messages | map(attribute="role")) | tojson
none | tojson
1 is odd
2 is even
9 is divisibleby 3
9 is divisibleby(4)
n is number
n is integer
1.0 is integer
1.0 is float
true is integer
true is number
true is boolean
true is true
1 is true
false is false
"a" is string
d is mapping
[] is sequence
"a" is sequence
d is sequence
d.keys() is sequence
(messages | map(attribute="role")) is sequence
(messages | map(attribute="role")) is iterable
5 is iterable
none is iterable
"a" is iterable
undefined_thing is iterable
undefined_thing is sequence
none is none
undefined_thing is none
undefined_thing is defined
undefined_thing is undefined
undefined_thing is not defined
n is not none
n is eq 5
n is equalto(5)
n is == 5
n is ne 5
n is in [5, 6]
n is not in [5, 6]
n is sameas none
none is sameas none
"abc" is lower
"ABC" is upper
range is callable
n is callable
not n is none
n is number and n is defined
range(3)
range(3) | list
range(1, 7, 2) | list
range(5, 0, -2) | list
range(0) | list
range(1000000)
range(3)[1]
range(3) | length
dict(a=1, b=2)
dict([("a", 1)])
dict({"a": 1}, b=2)
namespace(a=1).a
namespace(a=1).b is defined
namespace(_a=1)
cycler("a", "b").next()
raise_exception("stop " ~ n)
strftime_now("%Y-%m-%d")
strftime_now("%d %b %Y %H:%M")
strftime_now is defined
"a" | string
5 | string
[1, "a"] | string
"<a>" | safe
["<a>" | safe, "b"] | join("<")
"hello big world" | wordcount
d | attr("x") is defined
"abc" | attr("upper") is defined
-n
+n
-"a"
- none
1.5
"\x41\u0042\t\101\q"
'\\'
d.x.y is defined
(d.b or "alt")
[d, d][1].x
[[1, 2], [3, 4]][1][0]
{"a": {"b": [10, 20]}}.a.b[1]
{"k": "v"}["k"]
d["nothing"] is defined
d[none] is defined
d[[1]] is defined
[1, 2, 3] | join(", ") | length
[1, 2] | length == 2
messages | length - 1
"a,b" | replace(",", ";") ~ "!"
"x" ~ 1 + 2
"abc" | upper | lower | title
loop is defined
"a" "b" | upper
( "a" ) ~ ( "b" )
1 if true else 2 + 5
[1, 2,]
{"a": 1,}
(1,)
not not 1
n if n else 0
""" .strip().split("\n")

UNITS = [("{{ " + expression + " }}", ITEMS) for expression in EXPRESSIONS]


def add(template, **variables):
    UNITS.append((template, variables))


# White space around tags.
add("a\n  {% if true %}\n  b\n  {% endif %}\nc\n")
add("a\n  {%- if true %}\n  b\n  {%- endif %}\nc\n")
add("a  {%- if true -%}  \n b \n {%- endif -%}  \n c")
add("a\n  {%+ if true %}\n  b\n  {%+ endif %}\nc")
add("a {% if true %}\nb{% endif %}\n\nc\n\n")
add("a\n {{ 1 }}\n {{- 2 -}}\n {{ 3 }}")
add("x {# note #}\ny\n  {# note #}\nz {#- strip -#} w\n")
add("x\n   {#- a\n b -#}   \ny{# -#} z")
add("{% raw %}{{ not }} {% if %}{% endraw %}\nx")
add("  {%- raw -%}  {{ a }}  {%- endraw -%}  x")
add("\n\n{% if true %}\n\nx\n\n{% endif %}\n\n")
add("   {% set x = 1 %}   {{ x }}")
add("a\r\nb\r{% if true %}\r\nc{% endif %}")
add("{{ 'a\r\nb' }}")
add("{% if true %}x{% endif +%}\ny")
add("{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': 1}}}")
add("{{ \"{% x %}\" }}")
add("{ % {a} }} %} #}")
add("")
add("\n")
add("\n\n")
add("a\u2028{%- if true %}b{% endif %}")
add("\u3000{% if true %}b{% endif %}")

# Statements.
add("{% if a %}1{% elif b %}2{% else %}3{% endif %}", b=1)
add("{% if a %}1{% elif c %}2{% else %}3{% endif %}")
add("{% for i in [1, 2, 3] %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}")
add("{% for i in 'aé𝄞' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}")
add("{% for i in [1, 2, 3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}")
add("{% for i in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}")
add("{% for i in [1, 2, 3, 4] if i is even %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}")
add("{% set ns = namespace(n=0) %}{% for i in range(6) if i + ns.n < 7 %}{% set ns.n = ns.n + i %}{{ i }} {% endfor %}{{ ns.n }}")
add("{% for i in [] %}x{% else %}empty{% endfor %}")
add("{% for i in [1] if i > 1 %}x{% else %}empty{% endfor %}")
add("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}")
add("{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}")
add("{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}")
add("{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}")
add("{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}")
add("{% for i in none %}x{% endfor %}")
add("{% for i in nothing %}x{% else %}none{% endfor %}")
add("{% for i in 5 %}x{% endfor %}")
add("{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}")
add("{% for i in [1, 2] %}{% for j in [1, 2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}")
add("{% for i in [1, 2] %}{% break %}{% else %}never{% endfor %}")
add("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}")
add("{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}")
add("{% if false %}{% set x = 2 %}{% endif %}{{ x }}", x=7)
add("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}")
add("{% set ns = namespace() %}{% set ns.a = 1 %}{% for i in range(3) %}{% set ns.a = ns.a * 2 %}{% endfor %}{{ ns.a }}")
add("{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{{ ns['a'] is defined }}")
add("{% set d = {} %}{% set d.a = 1 %}")
add("{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]")
add("{% set x | upper | replace('A', 'z') %}a{{ 1 }}b{% endset %}[{{ x }}]")
add("{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}")
add("{% filter upper %}a{{ 'b' }}{% endfilter %}")
add("{% filter replace('a', 'b') | upper %}abc{% endfilter %}")
add("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}")
add("{% with a = 1, b = a %}{{ b }}{% endwith %}", a=5)
add("{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m() }} {{ m(b=5, a=6) }}")
add("{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}")
add("{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}")
add("{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}")
add("{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}")
add("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}")
add("{% macro m() %}[{{ caller(1, 2) }}]{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}")
add("{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}")
add("{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}")
add("{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}")
add("{% macro f(n) %}{% if n > 1 %}{{ n * (f(n - 1) | int) }}{% else %}1{% endif %}{% endmacro %}{{ f(10) }}")
add("{% macro m() %}\n  a\n{% endmacro %}{{ m() }}|{{ m() | trim }}")
add("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}")
add("{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}")
add("{% macro m(x) %}{% for i in x %}{{ i }}{{ loop.last }}{% endfor %}{% endmacro %}{{ m([1, 2]) }}")
add("{% macro m() %}{% set y = 3 %}{{ y }}{% endmacro %}{{ m() }}{{ y is defined }}")
add("a{% generation %}b{% set q = 1 %}{{ 1 }}{% endgeneration %}c{{ q is defined }}")
add("{% for m in ms %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ loop.index }}\n{% endgeneration %}\n{% endif %}{% endfor %}",
    ms=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
add("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}")
add("{% set j = joiner('|') %}{% for i in [1, 2, 3] %}{{ j() }}{{ i }}{% endfor %}")
add("{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('x', 'y') }} {% endfor %}")
add("{% set g = [1, 2, 3] | select('odd') %}{{ g | list }}{{ g | list }}")
add("{% set g = [1, 2, 3] | map('string') %}{% for i in g %}{{ i }}{{ loop.length }}{% endfor %}")
add("{% set x = [1, 2] %}{{ x.append(3) }}")
add("{{ raise_exception('no') }}")
add("{% if not ok %}{{ raise_exception('Roles must alternate: ' + \"user\" ~ 1) }}{% endif %}")
add("{{ a.b.c }}", a={})
add("{{ messages }}", messages=[{"role": "user", "content": "it's \"x\"\n", "n": 1.0, "t": True, "z": None}])
add("{% print 1 + 1 %}")
add("{{ 1, 2 }}")
add("{% set x = 1 if false %}{{ x is defined }}")
add("{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{{ m }}{% endfor %}", messages=["a", "b", "c"])
add("{% set content = m.content if m.content is string else '' %}{{ content }}", m={"content": ["x"]})
add("{%- set t = {'string': 'str', 'number': 'float'} -%}{{ t[s.type] if s.type in t else 'Any' }}", s={"type": "number"})
add("{% set ns = namespace(found=false) %}{% for x in xs %}{% if x == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", xs=[1, 2])
add("{{ x | tojson | safe }}", x={"a": "<b>"})
add("{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{{ loop_messages | length }}", messages=[{"role": "system"}, {"role": "user"}])
add("{{ ('tool_calls' in m and m.tool_calls) or 'none' }}", m={"tool_calls": []})
add("{{ big }} {{ small }} {{ f }} {{ whole }}", big=2**62, small=-(2**63), f=1e-10, whole=3.0)

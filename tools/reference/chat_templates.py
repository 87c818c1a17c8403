"""Writes what Hugging Face's chat template environment renders, as goldens for keel's own interpreter.

    python tools/reference/chat_templates.py TEMPLATES_FOLDER TINY_MODEL_FOLDER [--out tests/golden/chat_templates.json]

Every template renders every conversation; and every small template of chat_template_units.py its variables. A rendering that
raises is kept as {"raises": message} where the template raised by itself, else as {"raises": true}.
"""

import argparse
import datetime
import json
from pathlib import Path

import jinja2
from transformers.utils import chat_template_utils

from chat_template_units import UNITS

NOW = 1764460800  # 2025-11-30 00:00 UTC


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedClock

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather at a place, today.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City, \"as written\" <b>"},
        "unit": {"type": "string", "enum": ["°C", "°F"], "description": " unit "},
        "days": {"type": "integer", "minimum": 1, "description": "how many"},
        "at": {"type": ["number", "null"], "description": "hour"}},
        "required": ["place"]},
    "return": {"type": "object", "description": "The weather"}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Finds pages", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, id="abc123XYZ"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def tool(content):
    return {"role": "tool", "name": "get_weather", "tool_call_id": "abc123XYZ", "content": content}


GREETING = [user("Hello!"), assistant("Hi. How can I help?"), user("Tell me a joke.")]
TOOL_CHAT = [system("Be brief."), user("Weather in Oslo?"),
             assistant("", tool_calls=[call("get_weather", {"place": "Oslo", "days": 2, "exact": 1.5, "nested": {"a": [1, None, True]}})]),
             tool('{"temperature": -3.5}'), assistant("It is cold: −3.5 °C."), user("And Rome?")]
CONVERSATIONS = {
    "one question": {"messages": [user("What is 2+2?")], "add_generation_prompt": True},
    "no generation prompt": {"messages": [user("What is 2+2?")], "add_generation_prompt": False},
    "system": {"messages": [system("You are terse."), user("Hi")], "add_generation_prompt": True},
    "several turns": {"messages": [system("S")] + GREETING, "add_generation_prompt": True},
    "ends with assistant": {"messages": GREETING[:2], "add_generation_prompt": False},
    "unicode and quotes": {"messages": [system("Ωμέγα — \u200b 𝄞"), user("naïve 'quotes' \"double\" \\ back\ttab\n\n日本語 🙂 <|im_end|> ")],
                           "add_generation_prompt": True},
    "empty contents": {"messages": [system(""), user(""), assistant(""), user(" \n ")], "add_generation_prompt": True},
    "null content": {"messages": [user("Go"), assistant(None, tool_calls=[call("search", {})]), tool("[]")],
                     "tools": [SEARCH], "add_generation_prompt": True},
    "tools": {"messages": [user("Weather in Oslo?")], "tools": [WEATHER, SEARCH], "add_generation_prompt": True},
    "tools and system": {"messages": [system("Be brief."), user("Weather in Oslo?")], "tools": [WEATHER], "add_generation_prompt": True},
    "tool calls and results": {"messages": TOOL_CHAT, "tools": [WEATHER], "add_generation_prompt": True},
    "tool call as text": {"messages": [user("W?"), assistant("", tool_calls=[call("get_weather", '{"place": "Oslo"}')]), tool("cold")],
                          "tools": [WEATHER], "add_generation_prompt": True},
    "two calls at once": {"messages": [user("W?"), assistant("Asking.", tool_calls=[call("get_weather", {"place": "Oslo"}), call("search", {}, "def456XYZ")]),
                                       tool("cold"), tool("nothing"), assistant("Cold, nothing."), user("Thanks")],
                          "tools": [WEATHER, SEARCH], "add_generation_prompt": True},
    "short call id": {"messages": [user("W?"), assistant("", tool_calls=[call("get_weather", {}, "1")]), tool("cold")],
                      "tools": [WEATHER], "add_generation_prompt": True},
    "content parts": {"messages": [user([{"type": "text", "text": "Look: "}, {"type": "text", "text": "here"}])], "add_generation_prompt": True},
    "thinking off": {"messages": GREETING, "enable_thinking": False, "add_generation_prompt": True},
    "thinking on": {"messages": GREETING, "enable_thinking": True, "thinking": True, "add_generation_prompt": True},
    "thoughts in answers": {"messages": [user("2+2?"), assistant("<think>\nTwo and two.\n</think>\n\n4"), user("3+3?"),
                                         assistant("<think>\n6, says the child\n</think>\n\n6")], "add_generation_prompt": False},
    "reasoning beside the answer": {"messages": [user("2+2?"), assistant("4", reasoning_content="\nTwo and two.\n")], "add_generation_prompt": False},
    "no_think in system": {"messages": [system("Hello /no_think there  "), user("q"), assistant("\n\na"), user("b")], "add_generation_prompt": True},
    "documents": {"messages": [user("Who?")], "documents": [{"doc_id": 1, "title": "T", "text": "Ann did."}, {"doc_id": "b", "title": "U", "text": "Bob."}],
                  "controls": {"citations": True, "length": "short"}, "add_generation_prompt": True},
    "documents and tools": {"messages": [user("Who?")], "documents": [{"doc_id": 1, "text": "Ann."}], "tools": [WEATHER],
                            "controls": ["hallucinations"], "add_generation_prompt": True},
    "two user turns in a row": {"messages": [user("a"), user("b")], "add_generation_prompt": True},
    "starts with assistant": {"messages": [assistant("a"), user("b")], "add_generation_prompt": True},
    "unknown role": {"messages": [{"role": "critic", "content": "no"}], "add_generation_prompt": True},
    "no messages": {"messages": [], "add_generation_prompt": True},
    "date given": {"messages": [user("Hi")], "date_string": "1 Jan 2030", "tools_in_user_message": False, "tools": [SEARCH],
                   "add_generation_prompt": True},
    "built-in tools": {"messages": [user("Hi"), assistant("", tool_calls=[call("brave_search", {"query": "x", "site": "y"})])],
                       "builtin_tools": ["brave_search", "code_interpreter"], "add_generation_prompt": False},
}


def variables_of(conversation):
    # apply_chat_template always passes these two, the tokenizer's texts among them.
    return {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **conversation}


def render(source, variables):
    try:
        return chat_template_utils._compile_jinja_template(source).render(**variables)
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raises": str(error)}
        return {"raises": True}
    except Exception:
        return {"raises": True}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("templates", type=Path)
    parser.add_argument("tiny", type=Path)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/chat_templates.json"))
    arguments = parser.parse_args()

    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(arguments.templates.glob("*.jinja"))}
    sources["tiny"] = json.loads((arguments.tiny / "tokenizer_config.json").read_text())["chat_template"]
    conversations = {name: variables_of(c) for name, c in CONVERSATIONS.items()}
    goldens = {
        "now": NOW,
        "conversations": conversations,
        "templates": {name: {title: render(source, c) for title, c in conversations.items()} for name, source in sources.items()},
        "units": [{"template": source, "variables": variables, "rendered": render(source, variables)} for source, variables in UNITS],
    }
    arguments.out.write_text(json.dumps(goldens, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    raised = sum(isinstance(u["rendered"], dict) for u in goldens["units"])
    print(f"{len(sources)} templates x {len(conversations)} conversations, {len(UNITS)} units of which {raised} raise, "
          f"{arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()

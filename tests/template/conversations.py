"""Conversations that the template tests render; each is the context of one rendering."""

SYSTEM = {"role": "system", "content": "You are a careful assistant."}
HELLO = {"role": "user", "content": "Hello, who are you?"}
REPLY = {"role": "assistant", "content": "I am a model.\nHow can I help?"}
UNICODE = {"role": "user", "content": "  Grüße, 世界! 🦜 «naïve» \u00a0 <tag> & \"quotes\" 'single' \\ back\tslash  "}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "description": "How many days", "minimum": 1},
                "options": {
                    "type": "object",
                    "description": "More",
                    "properties": {
                        "hourly": {"type": "boolean", "description": "Each hour?", "nullable": True},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "limit": {"type": ["number", "null"]},
                    },
                    "required": ["hourly"],
                },
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "A sentence"},
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers <a> & <b>.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"anyOf": [{"type": "number"}, {"type": "string"}]}},
            "required": ["a", "b"],
        },
    },
}
EMPTY_TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}


def call(identifier, name, arguments):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def context(messages, tools=None, generate=True, **more):
    """As apply_chat_template fills it: tools and documents are always there."""
    return {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": generate,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "</s>",
        **more,
    }


ARGUMENTS = {"city": "Zürich", "days": 3, "options": {"hourly": True, "tags": ["a", "b"], "limit": None}, "share": 0.5}
TOOL_TURN = [
    HELLO,
    REPLY,
    {"role": "user", "content": "What is the weather in Zürich?"},
    {"role": "assistant", "content": "", "tool_calls": [call("abcdefghi", "get_weather", ARGUMENTS)]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"sky": "clear", "temp": 21.5}'},
]
TWO_CALLS = [
    SYSTEM,
    {"role": "user", "content": "Add and tell."},
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [call("aaaaaaaaa", "add", {"a": 1, "b": 2.0}), call("bbbbbbbbb", "get_weather", {"city": "Rome"})],
    },
    {"role": "tool", "tool_call_id": "aaaaaaaaa", "name": "add", "content": "3.0"},
    {"role": "tool", "tool_call_id": "bbbbbbbbb", "name": "get_weather", "content": "rain"},
    {"role": "assistant", "content": "It is 3 and it rains."},
    {"role": "user", "content": "Thanks."},
]
STRING_ARGUMENTS = [
    HELLO,
    {"role": "assistant", "content": None, "tool_calls": [call("123456789", "add", '{"a": 1, "b": "x"}')]},
    {"role": "tool", "tool_call_id": "123456789", "content": "error: b"},
]
REASONING = [
    HELLO,
    {"role": "assistant", "content": "Forty-two.", "reasoning_content": "Let me think.\n6 * 7.\n"},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "<think>\nOld thought.\n</think>\n\nBecause.", "thinking": "A thought."},
    {"role": "user", "content": "And now?"},
]
PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Three."}]},
    {"role": "user", "content": [{"type": "text", "text": "See:"}, {"type": "image"}]},
]

CONVERSATIONS = {
    "single": context([HELLO]),
    "single, no prompt": context([HELLO], generate=False),
    "system": context([SYSTEM, HELLO]),
    "many turns": context([SYSTEM, HELLO, REPLY, UNICODE, REPLY, HELLO]),
    "ends with assistant": context([SYSTEM, HELLO, REPLY], generate=False),
    "ends with assistant, prompt": context([HELLO, REPLY]),
    "unicode": context([UNICODE]),
    "empty contents": context([{"role": "system", "content": ""}, {"role": "user", "content": ""}]),
    "no messages": context([]),
    "only system": context([SYSTEM]),
    "assistant first": context([REPLY, HELLO]),
    "two users": context([HELLO, HELLO]),
    "unknown role": context([HELLO, {"role": "narrator", "content": "Meanwhile."}]),
    "tools": context([SYSTEM, HELLO], [WEATHER, ADD]),
    "tools without system": context([HELLO], [WEATHER, ADD, EMPTY_TOOL]),
    "tools, no prompt": context([HELLO, REPLY], [ADD], generate=False),
    "tool turn": context(TOOL_TURN, [WEATHER]),
    "tool turn without tools": context(TOOL_TURN),
    "two calls": context(TWO_CALLS, [WEATHER, ADD]),
    "two calls, no prompt": context(TWO_CALLS, [WEATHER, ADD], generate=False),
    "string arguments": context(STRING_ARGUMENTS, [ADD]),
    "reasoning": context(REASONING),
    "thinking on": context(REASONING, enable_thinking=True, thinking=True),
    "thinking off": context(REASONING, enable_thinking=False, thinking=False, reasoning_effort="low"),
    "tools and thinking": context([SYSTEM] + TOOL_TURN, [WEATHER], enable_thinking=True, reasoning_effort="high"),
    "parts": context(PARTS),
    "parts, no prompt": context(PARTS, generate=False),
    "null content": context([HELLO, {"role": "assistant", "content": None}, HELLO]),
    "developer": context([{"role": "developer", "content": "Obey."}, HELLO], [ADD], model_identity="You are X."),
    "documents": context([HELLO], documents=[{"title": "T", "text": "Body of it."}], controls={"length": "long"}),
    "no extras": {"messages": [SYSTEM, HELLO], "add_generation_prompt": True},
    "extra fields": context(
        [{"role": "user", "content": "Hi", "name": "Ann", "weight": 1}, {**REPLY, "prefix": True, "channel": "final"}],
        builtin_tools=["browser", "python"],
    ),
}

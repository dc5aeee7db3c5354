#!/usr/bin/env python3
"""Writes the fixtures of the template tests: what PyPI's jinja2 gives, set up as transformers sets it up.

    python3 make_expected.py SHARED_DIR      (jinja2 3.1.6 wrote the files in the tree)

templates.json.gz: every template under SHARED_DIR/data/templates, and in the tokenizer_config.json files under
SHARED_DIR/data/tokenizers, on the conversations of conversations.py.
language.json.gz: the snippets of snippets.py.
"""

import datetime
import gzip
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conversations import CONVERSATIONS
from snippets import SNIPPETS

NOW = datetime.datetime(2025, 3, 9, 14, 5, 7)


class Generation(jinja2.ext.Extension):
    """{% generation %}: a call block that gives back its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def result(env, source, context):
    """{"output": text} or {"error": text, "raised": whether the template itself raised it}."""
    try:
        output = env.from_string(source).render(**json.loads(json.dumps(context)))
        if " at 0x" in output:  # an address is nobody's expected text
            return {"error": "prints an object", "raised": False}
        return {"output": output}
    except Exception as error:  # noqa: BLE001: any failure is an expected one
        raised = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error), "raised": raised}


def write(name, data):
    text = json.dumps(data, ensure_ascii=False, indent=None, separators=(",", ":"))
    path = pathlib.Path(__file__).parent / name
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text.encode())
    print(f"{path}: {path.stat().st_size} bytes, {len(text)} unpacked")


def templates(folder):
    """(path inside the folder, text) of every template."""
    for path in sorted(folder.glob("templates/*.jinja")):
        yield path.relative_to(folder), path.read_text(encoding="utf-8")
    for path in sorted(folder.glob("tokenizers/*/tokenizer_config.json")):
        source = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if source is not None:
            yield path.relative_to(folder), source


def main():
    env = environment()
    cases = []
    for path, source in templates(pathlib.Path(sys.argv[1]) / "data"):
        for name, context in CONVERSATIONS.items():
            cases.append({"template": str(path), "conversation": name, **result(env, source, context)})
    errors = sum("error" in case for case in cases)
    print(f"{len(cases)} renderings, {errors} of them errors")
    write("templates.json.gz", {"conversations": CONVERSATIONS, "cases": cases})

    cases = []
    for snippet in SNIPPETS:
        source, context = snippet if isinstance(snippet, tuple) else (snippet, {})
        cases.append({"template": source, "context": context, **result(env, source, context)})
    errors = sum("error" in case for case in cases)
    print(f"{len(cases)} snippets, {errors} of them errors")
    write("language.json.gz", cases)


if __name__ == "__main__":
    main()

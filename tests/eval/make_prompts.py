"""Writes data/prompts.json: what lm-evaluation-harness makes of made-up rows, and what its filters find in replies.

Run with PyPI's lm-eval 0.4 installed: python make_prompts.py
"""
import importlib.metadata
import importlib.util
import json
import pathlib

import lm_eval
import yaml
from lm_eval import utils
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters.extraction import RegexFilter

TASKS = pathlib.Path(lm_eval.__file__).parent / "tasks"
HERE = pathlib.Path(__file__).parent


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("!function", lambda loader, node: "function:" + node.value)


def config(path):
    loaded = yaml.load((TASKS / path).read_text(), Loader)
    if "include" in loaded:
        loaded = {**config(pathlib.Path(path).parent / loaded["include"]), **loaded}
    return {"folder": (TASKS / path).parent, **loaded}


def render(task, key, doc):
    """A doc_to_... field: a constant, a function, a column, or a template, in lm-eval's order."""
    value = task[key]
    if not isinstance(value, str):
        return value
    if value.startswith("function:"):
        module, name = value.removeprefix("function:").split(".")
        spec = importlib.util.spec_from_file_location(module, task["folder"] / (module + ".py"))
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return getattr(loaded, name)(doc)
    if value in doc:
        return doc[value]
    text = utils.apply_template(value, doc)
    if key == "doc_to_choice":
        import ast
        return ast.literal_eval(text)
    return text


def choices(path, doc, row, name, multiple_contexts=False):
    task = config(path)
    text, target = render(task, "doc_to_text", doc), render(task, "doc_to_target", doc)
    options = render(task, "doc_to_choice", doc)
    delimiter = task.get("target_delimiter", " ")
    if multiple_contexts:
        requests, gold = [[option, delimiter + target] for option in options], text
    else:
        requests = [[text, delimiter + option] for option in options]
        gold = options.index(target) if target in options else int(target)
    return {"task": name, "row": row, "requests": requests, "gold": gold}


def question(name, path, question, options, gold):
    doc = {"question": question, "goal": question, "question_stem": question, "answerKey": "ABCDE"[gold],
           "choices": {"text": options, "label": list("ABCDE")[:len(options)]}, "label": gold}
    if len(options) == 2:
        doc |= {"sol1": options[0], "sol2": options[1]}
    return choices(path, doc, {"query": f"Question: {question}", "choices": options, "gold": gold}, name)


def cases():
    yield question("arc_easy", "arc/arc_easy.yaml", "Which of these melts first?", ["Ice", "Iron", "Salt"], 0)
    yield question("arc_challenge", "arc/arc_challenge.yaml", "Why is the “sky” blue?",
                   ["It reflects the sea.", "Short waves scatter more.", "Ozone.", "Dust."], 1)
    piqa = question("piqa", "piqa/piqa.yaml", "How do I open a jar?", ["Turn the lid.", "Turn the glass, hard."], 0)
    piqa["row"]["query"] += "\n"
    yield piqa
    doc = {"activity_label": "Baking bread", "ctx_a": "A man kneads dough.", "ctx_b": "the man", "label": "1",
           "endings": ["swims.", "lets it [title] rest  a while.", "sings", "is a u.s. baker."]}
    spec = importlib.util.spec_from_file_location("hellaswag", TASKS / "hellaswag/utils.py")
    hellaswag = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hellaswag)
    for lower, upper in [("the man", None), ("", None)]:
        doc["ctx_b"] = lower
        context = doc["ctx_a"] + " " + lower
        made = {"query": hellaswag.preprocess(doc["activity_label"] + ": " + doc["ctx_a"] + " " + lower.capitalize()),
                "choices": [hellaswag.preprocess(ending) for ending in doc["endings"]], "label": 1}
        row = {"query": hellaswag.preprocess(doc["activity_label"] + ": " + context), "choices": made["choices"],
               "gold": 1}
        yield choices("hellaswag/hellaswag.yaml", made, row, "hellaswag")
    doc = {"sentence": "The cup did not fit in the box because _ was too big.", "option1": "the cup",
           "option2": "the box", "answer": "1"}
    row = {"context_options": ["The cup did not fit in the box because the cup",
                               "The cup did not fit in the box because the box"],
           "continuation": "was too big.", "gold": 0}
    yield choices("winogrande/default.yaml", doc, row, "winogrande", True)
    doc = {"passage": "Rain -- Rain is water.", "question": "is rain wet", "label": 1}
    row = {"query": "Passage: Rain -- Rain is water.\nQuestion: is rain wet?", "choices": ["no", "yes"], "gold": 1}
    yield choices("super_glue/boolq/default.yaml", doc, row, "boolq")
    book = question("openbookqa", "openbookqa/openbookqa.yaml", "A plant needs", ["light", "a hat", "ink", "tin"], 0)
    book["row"]["query"] = "A plant needs"
    yield book
    doc = {"context": "Ann lost her key.", "question": "What will Ann do?", "answerA": "call a locksmith",
           "answerB": "eat", "answerC": "swim", "label": "1"}
    row = {"context": doc["context"], "question": doc["question"], "choices": ["call a locksmith", "eat", "swim"],
           "answer": 0}
    yield choices("siqa/siqa.yaml", doc, row, "social_iqa")
    options = ["bank", "library", "mall", "home", "new york"]
    doc = {"question": " Where is money kept? ", "choices": {"text": options}, "answerKey": "A"}
    row = {"question": doc["question"], "choices": options, "labels": list("ABCDE"), "answer": 0}
    yield choices("commonsense_qa/default.yaml", doc, row, "commonsense_qa")
    for kind, word in (("cause", "because"), ("effect", "therefore")):
        doc = {"premise": "The pond froze.", "question": kind, "choice1": "It was cold.", "choice2": "Fish sang.",
               "label": 0}
        row = {"query": f"The pond froze, {word}", "choices": ["it was cold.", "fish sang."], "gold": 0}
        case = choices("super_glue/copa/default.yaml", {**doc, "label": 0}, row, "copa")
        yield case
    task = config("lambada/lambada_openai.yaml")
    doc = {"text": "She opened the door, saw the \"cat\" and called the cat"}
    yield {"task": "lambada_openai", "gold": 0,
           "requests": [[render(task, "doc_to_text", doc), render(task, "doc_to_target", doc)]],
           "row": {"context": "She opened the door, saw the \"cat\" and called the", "continuation": "cat"}}
    task = config("mmlu/default/mmlu_abstract_algebra.yaml")
    doc = {"question": " Find 1 + 1. ", "choices": ["1", "2", "3", "4"], "answer": 1}
    case = choices("mmlu/default/mmlu_abstract_algebra.yaml", doc,
                   {"subject": "abstract_algebra", "question": doc["question"], "choices": doc["choices"], "answer": 1},
                   "mmlu")
    yield {**case, "description": task["description"]}
    task = config("gsm8k/gsm8k.yaml")
    doc = {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 4"}
    yield {"task": "gsm8k", "gold": 0, "row": doc,
           "requests": [[render(task, "doc_to_text", doc), " " + render(task, "doc_to_target", doc)]]}


def numbers():
    task = config("gsm8k/gsm8k.yaml")
    filters = [RegexFilter(**{key: value for key, value in stage["filter"][0].items() if key != "function"})
               for stage in task["filter_list"]]
    options = {key: task["metric_list"][0][key] for key in ("regexes_to_ignore", "ignore_case", "ignore_punctuation")}
    gold = "He has 1200 - 200.\n#### 1,000"
    for text in ["So 1,000.\n#### 1000", "#### 1,000 and #### 7", "it costs $1,000.", "####1000", "no number", "",
                 "#### -1000", "the range 5-1000", "1000 - 3 = 997", "x = 1000. y", "#### 1000.", "a - 1000", "$", "$$",
                 "-", "about 1.000.", "#### ,", "#### $1000", "-$1,000", "1000\n#### "]:
        found = [stage.apply([[text]], [{}])[0][0] for stage in filters]
        yield {"text": text, "gold": gold, "strict": found[0], "flexible": found[1],
               "matches": [bool(exact_match_hf_evaluate([number], [gold], **options)["exact_match"])
                           for number in found]}


made = {"lm_eval": importlib.metadata.version("lm_eval"),
        "cases": list(cases()), "numbers": list(numbers())}
(HERE / "data" / "prompts.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")

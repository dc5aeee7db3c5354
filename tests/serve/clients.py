"""Clients of other authors against the server. Run by scripts/test-clients (pytest)."""
import asyncio
import gzip
import itertools
import json
import os
import pathlib
import random
import subprocess

import httpx
import jsonschema
import lm_eval
import openai
import pydantic
import pytest
from lm_eval.tasks import TaskManager

from server_process import Server

SHARED = pathlib.Path(os.environ["QUATRAIN_SHARED"])
HERE = pathlib.Path(__file__).parent
SCHEMAS = int(os.environ.get("QUATRAIN_SCHEMAS", "200"))
ITEMS = int(os.environ.get("QUATRAIN_ITEMS", "40"))


@pytest.fixture(scope="module")
def server():
    with Server("--chat-template", str(HERE / "tools.jinja"), "--context", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def ask(text):
    return [{"role": "user", "content": text}]


# openai

def test_models_and_chat(client):
    assert [model.id for model in client.models.list()] == ["model"]
    assert client.models.retrieve("model").id == "model"
    reply = client.chat.completions.create(model="model", messages=ask("Say hello."), max_tokens=16, temperature=0)
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].message.content
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_streams_say_the_same(client):
    request = dict(model="model", messages=ask("Count to ten."), max_tokens=40, seed=7)
    whole = client.chat.completions.create(**request)
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert text == whole.choices[0].message.content
    assert finish == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_choices_stop_and_logprobs(client):
    reply = client.chat.completions.create(model="model", messages=ask("Name a colour."), n=3, seed=1,
                                           max_tokens=12, logprobs=True, top_logprobs=2, stop=["\n"])
    assert len(reply.choices) == 3
    for choice in reply.choices:
        assert "\n" not in choice.message.content
        assert choice.logprobs.content and len(choice.logprobs.content[0].top_logprobs) == 2


def test_completions(client):
    reply = client.completions.create(model="model", prompt=["The sky is", "Two and two make"], max_tokens=6,
                                      temperature=0, echo=True, logprobs=1)
    assert reply.choices[0].text.startswith("The sky is")
    assert len(reply.choices[1].logprobs.tokens) == len(reply.choices[1].logprobs.token_logprobs)


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=ask("x"))
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="model", messages=ask("x"), temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="model", prompt="word " * 5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):  # 501
        client.embeddings.create(model="model", input="x")
    with Server("--api-key", "secret", "--context", "512") as locked:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=locked.url + "/v1", api_key="wrong").models.list()
        assert openai.OpenAI(base_url=locked.url + "/v1", api_key="secret").models.list()


def test_async_clients_do_not_see_each_other(server, client):
    requests = [dict(model="model", messages=ask(f"Tell me about the number {i}."), max_tokens=24, seed=i)
                for i in range(16)]
    alone = [client.chat.completions.create(**request).choices[0].message.content for request in requests]

    async def together():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as many:
            replies = await asyncio.gather(*(many.chat.completions.create(**request) for request in requests))
            return [reply.choices[0].message.content for reply in replies]

    assert asyncio.run(together()) == alone


def test_async_stream_that_is_left(server):
    async def leave():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as one:
            stream = await one.chat.completions.create(model="model", messages=ask("A long story."), stream=True,
                                                       max_tokens=1500)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(leave())
    server.quiet(10)


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "unit"],
                   "properties": {"city": {"type": "string", "maxLength": 30},
                                  "unit": {"enum": ["celsius", "fahrenheit"]},
                                  "days": {"type": "integer", "minimum": 1, "maximum": 7}}}}}


def test_tools(client):
    messages = ask("What is the weather in Paris?")
    reply = client.chat.completions.create(model="model", messages=messages, tools=[WEATHER], max_tokens=200,
                                           tool_choice="required", parallel_tool_calls=False, seed=1)
    assert reply.choices[0].finish_reason == "tool_calls"
    call = reply.choices[0].message.tool_calls[0]
    jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])

    messages += [reply.choices[0].message,
                 {"role": "tool", "tool_call_id": call.id, "content": "18 degrees and rain"}]
    answer = client.chat.completions.create(model="model", messages=messages, tools=[WEATHER], max_tokens=40)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls

    name, arguments = "", ""
    with client.chat.completions.create(
            model="model", messages=ask("Weather in Rome?"), tools=[WEATHER], stream=True, max_tokens=200,
            tool_choice={"type": "function", "function": {"name": "get_weather"}}, seed=2) as stream:
        for chunk in stream:
            for piece in chunk.choices[0].delta.tool_calls or []:
                if piece.index == 0:
                    name += piece.function.name or ""
                    arguments += piece.function.arguments or ""
    assert name == "get_weather"
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


def test_parsed_replies(client):
    class Step(pydantic.BaseModel):
        explanation: str
        result: float

    class Solution(pydantic.BaseModel):
        steps: list[Step]
        answer: int | None

    reply = client.chat.completions.parse(model="model", messages=ask("Solve 3x = 12 in JSON."), max_tokens=300,
                                          response_format=Solution, seed=3)
    assert isinstance(reply.choices[0].message.parsed, Solution)


# Schemas, judged by jsonschema

def random_schema(rng, depth):
    kinds = ["string", "short", "integer", "range", "number", "unit", "enum", "flag", "pattern", "date"]
    if depth > 0:
        kinds += ["object"] * 3 + ["array", "tuple", "union", "map"]
    kind = rng.choice(kinds)
    if kind == "object":
        names = rng.sample(["id", "name", "größe", "tags", "x y", "with \"quotes\"", "k\\s", "value"], rng.randint(1, 4))
        schema = {"type": "object", "properties": {name: random_schema(rng, depth - 1) for name in names},
                  "required": [name for name in names if rng.random() < 0.6]}
        if rng.random() < 0.5:
            schema["additionalProperties"] = False
        return schema
    low = rng.randint(-50, 50)
    inner = lambda: random_schema(rng, depth - 1)
    return {
        "string": lambda: {"type": "string"},
        "short": lambda: {"type": "string", "minLength": 1, "maxLength": rng.randint(1, 8)},
        "integer": lambda: {"type": "integer"},
        "range": lambda: {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)},
        "number": lambda: {"type": "number"},
        "unit": lambda: {"type": "number", "minimum": low / 4, "exclusiveMaximum": low / 4 + 1},
        "enum": lambda: {"enum": rng.sample(["a", "ß", 1, 2.5, None, True, {"k": []}, ["v"]], 3)},
        "flag": lambda: {"type": ["boolean", "null"]},
        "pattern": lambda: {"type": "string", "pattern": rng.choice(["^[A-Z]{2}-\\d{3,5}$", "^(yes|no)!?$", "\\.txt$"])},
        "date": lambda: {"type": "string", "format": rng.choice(["date", "date-time", "uuid", "ipv4"])},
        "array": lambda: {"type": "array", "items": inner(), "minItems": rng.randint(0, 2), "maxItems": rng.randint(2, 4)},
        "tuple": lambda: {"type": "array", "prefixItems": [inner(), inner()], "items": False, "minItems": 2},
        "union": lambda: {"anyOf": [inner(), inner()]},
        "map": lambda: {"type": "object", "additionalProperties": inner()},
    }[kind]()


def test_every_output_parses_and_validates(server):
    rng = random.Random(1)
    schemas = []
    while len(schemas) < SCHEMAS:
        schema = random_schema(rng, 3)
        if schema.get("type") == "object":
            schemas.append(schema)

    async def generate(many, gate, index, schema):
        async with gate:
            reply = await many.chat.completions.create(
                model="model", messages=ask("Give me some JSON."), max_tokens=250, seed=index,
                response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
        choice = reply.choices[0]
        assert choice.finish_reason == "stop", (schema, choice)
        value = json.loads(choice.message.content)
        jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())

    async def all_of_them():
        gate = asyncio.Semaphore(32)
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=600) as many:
            await asyncio.gather(*(generate(many, gate, *item) for item in enumerate(schemas)))

    asyncio.run(all_of_them())


# httpx

def test_plain_http(server):
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.get("/health").json() == {"status": "ok"}
        assert "quatrain_kv_pages" in http.get("/metrics").text
        body = {"prompt": "One, two,", "max_tokens": 8, "stream": True, "temperature": 0}
        with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert http.post("/v1/completions", content=b"{").status_code == 400
        assert http.post("/v1/completions", content=(b"x" * 1000 for _ in range(10000))).status_code == 413
        assert http.post("/v1/completions", json={**body, "stream": False}).status_code == 200


# lm-eval

@pytest.fixture(scope="module")
def task_folder(tmp_path_factory):
    if not (SHARED / "data/qa").is_dir():
        pytest.skip("no shared data")
    folder = tmp_path_factory.mktemp("tasks")

    def first_items(name, subject=None):
        with gzip.open(SHARED / f"data/qa/{name}.jsonl.gz", "rt") as lines, \
             gzip.open(folder / f"{name}.jsonl.gz", "wt") as chosen:
            rows = (line for line in lines if subject is None or json.loads(line)["subject"] == subject)
            chosen.writelines(itertools.islice(rows, ITEMS))
        return (f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder / name}.jsonl.gz\n"
                "test_split: test\n")

    data = first_items("arc_easy")
    (folder / "choice.yaml").write_text(
        "task: local_choice\n" + data + "output_type: multiple_choice\n"
        'doc_to_text: "{{query}}\\nAnswer:"\ndoc_to_target: "{{gold}}"\ndoc_to_choice: "{{choices}}"\n'
        "metric_list:\n  - metric: acc\n  - metric: acc_norm\n")
    (folder / "text.yaml").write_text(
        "task: local_text\n" + data + "output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: "{{query}}"\nmetric_list:\n  - metric: word_perplexity\n')
    (folder / "chat.yaml").write_text(
        "task: local_chat\n" + data + "output_type: generate_until\n"
        'doc_to_text: "{{query}}"\ndoc_to_target: "{{choices[gold]}}"\n'
        "generation_kwargs:\n  until: [\"\\n\"]\n  max_gen_toks: 8\n  temperature: 0\n"
        "metric_list:\n  - metric: exact_match\n")
    (folder / "cloze.yaml").write_text(
        "task: local_cloze\n" + first_items("lambada_openai") + "output_type: loglikelihood\n"
        "doc_to_text: \"{{context}}\"\ndoc_to_target: \"{{' ' + continuation}}\"\n"
        "metric_list:\n  - metric: perplexity\n  - metric: acc\n")

    # The harness's own files, but for where the questions come from.
    tasks = pathlib.Path(lm_eval.__file__).parent / "tasks"
    for name in ("mmlu_test", "mmlu_dev"):
        first_items(name, "abstract_algebra")
    for shots in (0, 5):
        (folder / f"mmlu{shots}.yaml").write_text(
            f"include: {tasks}/mmlu/default/mmlu_abstract_algebra.yaml\ntask: local_mmlu{shots}\n"
            f"dataset_path: json\ndataset_name: null\ndataset_kwargs:\n  data_files:\n"
            f"    test: {folder}/mmlu_test.jsonl.gz\n    dev: {folder}/mmlu_dev.jsonl.gz\nnum_fewshot: {shots}\n")
    first_items("gsm8k_test")
    (folder / "gsm8k.yaml").write_text(
        f"include: {tasks}/gsm8k/gsm8k.yaml\ntask: local_gsm8k\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    test: {folder}/gsm8k_test.jsonl.gz\n"
        "training_split: null\nfewshot_split: test\nfewshot_config:\n  sampler: first_n\n")
    return folder


def run_task(server, folder, task, model, path, limit=None):
    result = lm_eval.simple_evaluate(
        model=model, model_args=f"model=model,base_url={server.url}{path},num_concurrent=4", tasks=[task],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=model == "local-chat-completions", bootstrap_iters=0,
        limit=limit)
    return result["results"][task], result["samples"][task]


def test_lm_eval_multiple_choice(server, client, task_folder):
    scores, samples = run_task(server, task_folder, "local_choice", "local-completions", "/v1/completions")
    assert len(samples) == ITEMS
    assert scores["acc,none"] > 0.35  # a quarter by chance; this model reaches about 0.5 on the whole set
    # One item by hand: the logprob of a choice is the sum over its tokens.
    sample = samples[0]
    context, choice = sample["doc"]["query"] + "\nAnswer:", " " + sample["doc"]["choices"][0]
    ids = [httpx.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
           for text in (context, context + choice)]
    scored = client.completions.create(model="model", prompt=[ids[1]], max_tokens=0, echo=True, logprobs=0)
    wanted = sum(scored.choices[0].logprobs.token_logprobs[len(ids[0]):])
    assert float(sample["filtered_resps"][0][0]) == pytest.approx(wanted, abs=1e-6)


def test_lm_eval_rolling(server, task_folder):
    scores, _ = run_task(server, task_folder, "local_text", "local-completions", "/v1/completions")
    assert 10 < scores["word_perplexity,none"] < 10000


def test_lm_eval_chat(server, task_folder):
    _, samples = run_task(server, task_folder, "local_chat", "local-chat-completions", "/v1/chat/completions")
    assert all(isinstance(sample["filtered_resps"][0], str) for sample in samples)


# The evaluator in the program and lm-eval over the server: the same items, the same figures.

def evaluated(task, folder, limit=ITEMS, *options):
    samples = folder / f"{task}.samples"
    answer = subprocess.run(
        [os.environ["QUATRAIN"], "eval", os.environ["QUATRAIN_MODEL"], "--task", task, "--data", folder,
         "--limit", str(limit), "--samples", samples, "--json", *options], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(answer)["results"][0], [json.loads(line) for line in samples.read_text().splitlines()]


def test_evaluator_agrees_on_choices(server, task_folder):
    scores, theirs = run_task(server, task_folder, "local_choice", "local-completions", "/v1/completions")
    result, ours = evaluated("arc_easy", task_folder)
    assert len(ours) == len(theirs) == ITEMS
    for mine, other in zip(ours, sorted(theirs, key=lambda sample: sample["doc_id"])):
        assert mine["gold"] == other["doc"]["gold"]
        assert mine["logprobs"] == pytest.approx([float(pair[0]) for pair in other["filtered_resps"]], abs=1e-4)
    assert result["acc"] == pytest.approx(scores["acc,none"])
    assert result["acc_norm"] == pytest.approx(scores["acc_norm,none"])


def test_evaluator_agrees_on_last_words(server, task_folder):
    scores, theirs = run_task(server, task_folder, "local_cloze", "local-completions", "/v1/completions")
    result, ours = evaluated("lambada_openai", task_folder)
    for mine, other in zip(ours, sorted(theirs, key=lambda sample: sample["doc_id"])):
        logprob, greedy = other["filtered_resps"][0]
        assert mine["logprobs"][0] == pytest.approx(float(logprob), abs=1e-4)
        assert mine["greedy"] == (str(greedy) == "True")
    assert result["acc"] == pytest.approx(scores["acc,none"])
    assert result["perplexity"] == pytest.approx(scores["perplexity,none"], rel=1e-4)


@pytest.mark.parametrize("shots", [0, 5])
def test_evaluator_agrees_on_letters(server, task_folder, shots):
    scores, theirs = run_task(server, task_folder, f"local_mmlu{shots}", "local-completions", "/v1/completions")
    result, ours = evaluated("mmlu", task_folder, ITEMS, "--fewshot", str(shots))
    assert len(ours) == len(theirs) == ITEMS
    for mine, other in zip(ours, sorted(theirs, key=lambda sample: sample["doc_id"])):
        assert mine["gold"] == other["doc"]["answer"]
        assert mine["logprobs"] == pytest.approx([float(pair[0]) for pair in other["filtered_resps"]], abs=1e-4)
    assert result["acc"] == pytest.approx(scores["acc,none"])


def test_evaluator_agrees_on_written_answers(server, task_folder):
    items = min(ITEMS, 6)
    scores, theirs = run_task(server, task_folder, "local_gsm8k", "local-completions", "/v1/completions", items)
    result, ours = evaluated("gsm8k", task_folder, items)
    theirs = sorted((sample for sample in theirs if sample["filter"] == "strict-match"),
                    key=lambda sample: sample["doc_id"])
    assert [mine["text"] for mine in ours] == [sample["resps"][0][0] for sample in theirs]
    assert any(mine["text"] for mine in ours)
    for ours_name, theirs_name in (("strict", "strict-match"), ("flexible", "flexible-extract")):
        assert result[f"exact_match_{ours_name}"] == pytest.approx(scores[f"exact_match,{theirs_name}"])

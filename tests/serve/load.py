"""64 clients at once. Run by scripts/test-load."""
import asyncio
import collections
import json
import os
import random
import sys
import time

import httpx

from server_process import Server

CLIENTS = 64
KINDS = 24  # different requests
GROWTH = 1e6 * float(os.environ.get("QUATRAIN_LOAD_GROWTH_MB", 64))  # allowed in the second half
CONTEXT = int(os.environ.get("QUATRAIN_LOAD_CONTEXT", 2048))


def request(kind):
    """Prompts of 10 to 400 words (with a small context, up to a fifth of it), replies of 4 to 96 tokens, greedy and
    sampled."""
    rng = random.Random(kind)
    words = " ".join(rng.choice(["the", "sea", "a", "light", "house", "of", "stone", "and", "wind"])
                     for _ in range(min(rng.choice([10, 40, 120, 400]), CONTEXT // 5)))
    return {"prompt": words, "max_tokens": rng.choice([4, 16, 48, 96]), "temperature": rng.choice([0, 0.8]),
            "seed": kind}


async def ask(http, kind):
    answer = await http.post("/v1/completions", json=request(kind))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


async def stream(http, kind, pieces=None):
    """The streamed text; after so many pieces the client leaves."""
    text, count = "", 0
    async with http.stream("POST", "/v1/completions", json={**request(kind), "stream": True}) as response:
        if response.status_code != 200:
            await response.aread()
            assert response.status_code == 429, response.text
            return None
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            text += event["choices"][0]["text"]
            count += 1
            if pieces is not None and count > pieces:
                return None
    return text


async def nonsense(http, rng):
    body = rng.choice([b"", b"{", b"[]", b'{"prompt": "x", "temperature": -1}', b"\xff" * 100,
                       b'{"prompt": ' + b"[" * 1000, b'{"prompt": true}', b'{"prompt": "x", "n": 1000}'])
    answer = await http.post("/v1/completions", content=body)
    assert answer.status_code == 400, answer.text


async def client(number, http, quiet, end, counts):
    rng = random.Random(1000 + number)
    while time.time() < end:
        kind, manner = rng.randrange(KINDS), rng.random()
        if manner < 0.1:
            await nonsense(http, rng)
            counts["nonsense"] += 1
        elif manner < 0.25:
            await stream(http, kind, pieces=rng.randrange(8))
            counts["left"] += 1
        else:
            text = await stream(http, kind) if rng.random() < 0.8 else await ask(http, kind)
            counts["whole" if text is not None else "busy"] += 1
            assert text is None or text == quiet[kind], (kind, text, quiet[kind])


async def watch(http, end, counts):
    """/health and /metrics answer whatever else goes on."""
    while time.time() < end:
        started = time.time()
        for path in ("/health", "/metrics"):
            assert (await http.get(path)).status_code == 200
        counts["slowest look, ms"] = max(counts["slowest look, ms"], int(1000 * (time.time() - started)))
        await asyncio.sleep(0.5)


async def load(server, seconds):
    counts = collections.Counter()
    limits = httpx.Limits(max_connections=CLIENTS + 4, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as http:
        quiet = [await ask(http, kind) for kind in range(KINDS)]
        before = server.metric("process_resident_memory_bytes")
        end = time.time() + seconds
        tasks = [client(number, http, quiet, end, counts) for number in range(CLIENTS)]
        await asyncio.gather(*tasks, watch(http, end, counts))
    await asyncio.to_thread(server.quiet)
    assert server.metric('quatrain_kv_pages{state="running"}') == 0
    after = server.metric("process_resident_memory_bytes")
    print(dict(counts), f"memory {before / 1e6:.0f} -> {after / 1e6:.0f} MB",
          f"{server.metric('quatrain_generated_tokens_total'):.0f} tokens generated")
    assert counts["whole"] > 0


def main():
    seconds = float(sys.argv[1])
    with Server("--context", str(CONTEXT), "--kv-tokens", "65536") as server:
        asyncio.run(load(server, seconds / 2))
        halfway = server.metric("process_resident_memory_bytes")
        asyncio.run(load(server, seconds / 2))
        # Pages stay with the process for reuse, so the first half may grow; the second must not.
        grown = server.metric("process_resident_memory_bytes") - halfway
        assert grown < GROWTH, f"memory grew by {grown / 1e6:.0f} MB in the second half"
    print("test-load: ok")


main()

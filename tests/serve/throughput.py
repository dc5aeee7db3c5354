"""Tokens a second of two servers, in turns. Run by scripts/bench-server.

Both get the same requests: prompts of 64 words that no other request has, 64 tokens each, greedy, no end token. Rounds of
the two follow each other, so that what else the machine does meets both; the median of the rounds' ratios is the figure.
"""
import asyncio
import contextlib
import os
import random
import statistics
import sys
import time

import httpx

from server_process import Server

TOKENS = 64


@contextlib.contextmanager
def llama_cpp(model, slots, threads):
    """llama.cpp's own server, from PyPI's xllamacpp."""
    import xllamacpp
    options = xllamacpp.CommonParams()
    options.model.path = model
    options.n_parallel, options.n_ctx = slots, slots * 512
    options.n_gpu_layers, options.verbosity = 0, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(options)  # listens as long as it lives
    yield server.listening_address


async def measure(url, clients, seed):
    rng = random.Random(seed)
    prompts = [" ".join(rng.choice(["sea", "light", "house", "stone", "wind", "river", "old", "bright"])
                        for _ in range(64)) for _ in range(clients)]

    async def one(http, prompt):
        answer = await http.post(url + "/v1/completions", json={"prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
                                                                "ignore_eos": True})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert usage["completion_tokens"] == TOKENS, usage

    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=clients)) as http:
        started = time.time()
        await asyncio.gather(*(one(http, prompt) for prompt in prompts))
        return clients * TOKENS / (time.time() - started)


def main():
    peer_model, rounds = sys.argv[1], int(sys.argv[2])
    threads = int(sys.argv[3]) or len(os.sched_getaffinity(0))
    print(f"{threads} threads each, load average {os.getloadavg()[0]:.1f}", flush=True)
    with (llama_cpp(peer_model, 16, threads) as peer,
          Server("--context", "512", "--threads", str(threads)) as ours):
        for clients in (1, 4, 16):
            pairs = []
            for turn in range(rounds + 1):
                pair = [asyncio.run(measure(url, clients, 100 * clients + turn)) for url in (ours.url, peer)]
                if turn > 0:  # the first warms both up
                    pairs.append(pair)
            ratio = statistics.median(mine / other for mine, other in pairs)
            mine, other = (statistics.median(column) for column in zip(*pairs))
            print(f"{clients:2} clients: {mine:.1f} tokens/s, llama.cpp {other:.1f}, ratio {ratio:.2f} "
                  f"({', '.join(f'{a / b:.2f}' for a, b in pairs)})", flush=True)


main()

#!/usr/bin/env python3
"""OpenAI's own Python client, unchanged, against `keel serve`; and Prometheus' own parser on its /metrics.

usage: openai_client.py KEEL MODEL        (KEEL: the program; MODEL: a folder with a chat template)
Exit code 0: every check held; 1: one did not (named on standard error); 2: the server or a package is missing.
"""
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

try:
    import openai
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"wanted the packages openai and prometheus_client: {error}", file=sys.stderr)
    sys.exit(2)

KEY = "a-key-for-this-test"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(keel, model, port):
    server = subprocess.Popen([keel, "serve", model, "--port", str(port), "--api-key", KEY, "--served-model-name", "tiny"])
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
    for _ in range(300):
        try:
            client.models.list()
            return server, client
        except openai.APIConnectionError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
    print("the server does not answer", file=sys.stderr)
    server.kill()
    sys.exit(2)


MESSAGES = [{"role": "user", "content": "Tom has 14 apples and buys 23 more. How many apples does Tom have now?"}]


def check_models(client):
    card = client.models.list().data[0]
    assert card.id == "tiny", card
    assert card.max_model_len > 0 and card.kv_cache["bytes_per_token"] > 0, card
    assert client.models.retrieve("tiny").id == "tiny"


def check_chat(client):
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_completion_tokens=40)
    text = whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    parts, usage, reasons = [], None, []
    for chunk in client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=40, stream=True,
                                                stream_options={"include_usage": True}):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            reasons.append(choice.finish_reason)
    assert "".join(parts) == text, ("streamed and whole differ", "".join(parts), text)
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1]), reasons
    assert usage.completion_tokens == whole.usage.completion_tokens, (usage, whole.usage)
    return text


def check_answer(client):
    text = check_chat(client)
    assert re.search(r"\b37\b", text), f"the tiny model should add 14 and 23: {text!r}"


def check_logprobs(client):
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=5, logprobs=True,
                                          top_logprobs=3)
    content = chat.choices[0].logprobs.content
    assert len(content) == chat.usage.completion_tokens, content
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3, token
        assert max(t.logprob for t in token.top_logprobs) == token.logprob, ("greedy takes the likeliest", token)
        assert bytes(token.bytes).decode("utf-8", "replace") is not None
    completion = client.completions.create(model="tiny", prompt="The sea was", temperature=0, max_tokens=3, logprobs=2,
                                           echo=True)
    logprobs = completion.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and "".join(logprobs.tokens) == completion.choices[0].text, logprobs


def check_choices(client):
    def draw(seed):
        made = client.completions.create(model="tiny", prompt=["One", "Two"], n=3, temperature=1, seed=seed, max_tokens=8)
        assert [choice.index for choice in made.choices] == list(range(6))
        return [choice.text for choice in made.choices]

    first = draw(1)
    assert first == draw(1), "a seed makes the same draw"
    assert first != draw(2) and len(set(first)) > 1, first


def check_errors(client):
    def refused(kind, **request):
        request = {"model": "tiny", "prompt": "a"} | request
        try:
            client.completions.create(**request)
        except kind as error:
            return error.body
        raise AssertionError(f"not refused as {kind.__name__}: {request}")

    assert refused(openai.BadRequestError, temperature=-1)["param"] == "temperature"
    assert refused(openai.BadRequestError, max_tokens=10**6)["code"] == "context_length_exceeded"
    assert refused(openai.BadRequestError, suffix="x")["param"] == "suffix"
    assert refused(openai.NotFoundError, model="gpt-4")["code"] == "model_not_found"
    try:
        client.with_options(api_key="wrong").models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError:
        pass


def check_leaving(client):
    """A stream that is left half-way leaves the server able to answer."""
    stream = client.completions.create(model="tiny", prompt="Once", max_tokens=2000, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    check_chat(client)


def read_metrics(client):
    """Samples by name and labels; fails on what Prometheus would not take."""
    with urllib.request.urlopen(str(client.base_url).removesuffix("v1/") + "metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert len({family.name for family in families}) == len(families), "a family is told twice"
    samples = {}
    for family in families:
        assert family.documentation and family.type != "unknown", family
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, ("a sample is told twice", sample)
            assert sample.labels["model_name"] == "tiny", sample
            samples[key] = sample.value
    return samples


def check_metrics(client):
    def total(samples, name):
        return sum(value for (found, _), value in samples.items() if found == name)

    before = read_metrics(client)
    for _ in range(3):
        client.completions.create(model="tiny", prompt="The sea was", temperature=0, max_tokens=5, extra_body={"ignore_eos": True})
    after = read_metrics(client)

    def grown(name):
        return total(after, name) - total(before, name)

    assert grown("keel:generation_tokens_total") == 15, grown("keel:generation_tokens_total")
    whole = grown("keel:e2e_request_latency_seconds_sum")
    parts = {part: grown(f"keel:request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode", "inference")}
    for name in ["e2e_request_latency_seconds"] + [f"request_{part}_time_seconds" for part in parts]:
        assert grown(f"keel:{name}_count") == 3, name
    assert all(seconds >= 0 for seconds in parts.values()) and whole > 0, parts
    assert abs(parts["queue"] + parts["prefill"] + parts["decode"] - whole) < 1e-6, (parts, whole)
    assert abs(parts["queue"] + parts["inference"] - whole) < 1e-6, (parts, whole)
    for name, labels in after:
        if name.endswith("_count"):
            buckets = [value for (found, other), value in after.items()
                       if found == name.removesuffix("_count") + "_bucket" and labels <= other]
            assert max(buckets) == after[name, labels], name
    assert total(after, "keel:kv_cache_pages") > 0


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    server, client = start(os.path.abspath(sys.argv[1]), sys.argv[2], free_port())
    failed = 0
    try:
        for check in (check_models, check_answer, check_logprobs, check_choices, check_errors, check_leaving, check_metrics):
            try:
                check(client)
                print(f"ok    {check.__name__}")
            except Exception as error:  # each check is told of; the others still run
                failed += 1
                print(f"FAIL  {check.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        client.close()
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=60)
    if code != 0:
        failed += 1
        print(f"FAIL  the server ended with {code}", file=sys.stderr)
    print(f"openai {openai.__version__}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

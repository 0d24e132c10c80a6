"""What Prometheus sees, against what clients were told."""

import re

import pytest
from live import USER, error_of
from prometheus_client.parser import text_string_to_metric_families
from test_ollama import PLAN
from tinymodel import Scripted, byte_tokens

from kt_core.server.fields import FILE

LABELS = {"model_name": "tiny/model"}


def figures(server):
    response = server.http.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(found, name, **labels):
    return found[name, tuple(sorted({**LABELS, **labels}.items()))]


def test_counts_agree_with_usage(serve):
    server = serve()
    prompt = [5 + i % 100 for i in range(150)]
    usages = [server.complete(prompt=prompt, max_tokens=limit, ignore_eos=True).json()["usage"] for limit in (1, 4)]
    chunks = server.chat(max_tokens=3, ignore_eos=True, stream=True).text.count("data: ")
    assert chunks
    server.wait_idle()
    found = figures(server)
    chat = server.chat(max_tokens=3).json()["usage"]["prompt_tokens"]
    assert value(found, "vllm:prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages) + chat
    assert value(found, "vllm:generation_tokens_total") == 1 + 4 + 3
    assert value(found, "vllm:prefix_cache_hits_total") == 128
    assert value(found, "vllm:prefix_cache_queries_total") == 300 + chat
    assert value(found, "vllm:request_success_total", finished_reason="length") == 3
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert value(found, f"vllm:{name}_seconds_count") == 3
    assert value(found, "vllm:request_time_per_output_token_seconds_count") == 2
    assert value(found, "vllm:request_generation_tokens_sum") == 8
    assert value(found, "vllm:num_requests_running") == value(found, "vllm:num_requests_waiting") == 0
    assert 0 <= value(found, "vllm:kv_cache_usage_perc") < 1 and value(found, "kt_pages_cached") >= 2


def test_experts_by_layer(serve):
    server = serve()
    server.engine._runner.experts = {1: Asked([10, 30, 0, 20]), 4: Asked([0, 0, 0, 0])}
    server.engine._runner.moved = moved = {"experts": 3, "bytes": 300, "hits": 25}
    found = figures(server)
    names = ("experts_asked_total", "experts_busiest_share", "experts_for_half")
    assert [value(found, f"kt_{name}", layer="1") for name in names] == [60, 0.5, 1]
    assert [value(found, f"kt_{name}", layer="4") for name in names] == [0, 0, 0]
    names = ("moved", "moved_bytes", "hits")
    assert [value(found, f"kt_experts_{name}_total") for name in names] == [*moved.values()]
    told = server.http.get("/v1/kt/experts").json()
    assert told == {"layers": [1, 4], "asked": [[10, 30, 0, 20], [0] * 4], "elsewhere": [[], []], "moved": moved}


class Asked:
    elsewhere = None

    def __init__(self, asked):
        self.asked = asked


def test_times_are_the_engines(serve):
    """Five tokens a step apart: the sum of what lies between them is the whole of the decode."""
    server = serve(Scripted(byte_tokens("abcde"), delay=0.01))
    server.chat()
    found = figures(server)
    assert value(found, "vllm:inter_token_latency_seconds_count") == 4
    assert (
        0.04
        <= value(found, "vllm:inter_token_latency_seconds_sum")
        <= value(found, "vllm:request_decode_time_seconds_sum") + 0.01
    )
    first, whole = (value(found, f"vllm:{n}_seconds_sum") for n in ("time_to_first_token", "e2e_request_latency"))
    assert whole == pytest.approx(first + value(found, "vllm:request_decode_time_seconds_sum"))


def test_requests_that_are_given_up_or_fail(serve):
    server = serve(Scripted(byte_tokens("ab"), delay=0.01, loop=True))
    with server.http.stream("POST", "/v1/chat/completions", json={"messages": [USER], "stream": True}) as response:
        lines = response.iter_lines()  # kept: its end would be the connection's
        next(lines)
        assert value(figures(server), "vllm:num_requests_running") == 1
    server.wait_idle()
    assert value(figures(server), "vllm:request_success_total", finished_reason="abort") == 1
    error_of(server.chat(timeout=0.05), 504)
    server.wait_idle()
    assert value(figures(server), "vllm:request_success_total", finished_reason="error") == 1


def test_http_requests_by_route(serve):
    server = serve()
    server.chat(max_tokens=1)
    server.chat(temperature=9)
    server.http.get("/v1/models/tiny/model")
    server.http.get("/nowhere/at/all")
    found = figures(server)

    def count(route, status, method="GET"):
        return found["kt_http_requests_total", (("method", method), ("route", route), ("status", str(status)))]

    assert count("/v1/chat/completions", 200, "POST") == count("/v1/chat/completions", 400, "POST") == 1
    assert count("/v1/models/{name:path}", 200) == 1 and count("other", 404) == 1
    assert "nowhere" not in server.http.get("/metrics").text


def test_while_loading_and_with_a_plan(serve, ask):
    assert value(figures(serve(loaded=False)), "kt_ready") == 0
    found = figures(ask("Hi", plan=PLAN))
    assert value(found, "kt_ready") == 1 and value(found, "kt_experts") == 6
    assert value(found, "kt_weight_bytes_per_token") == 24 + 1000 * 2 / 6
    assert found["process_resident_memory_bytes", ()] > 0


def test_info(serve, ask):
    loading = serve(loaded=False).http.get("/v1/kt/info").json()
    assert loading["ready"] is False and loading["kernels"] is None and loading["versions"]["torch"]
    info = ask("Hi", plan=PLAN, api_keys=()).http.get("/v1/kt/info").json()
    assert info["ready"] and info["spec"]["family"] == "qwen3_moe" and info["memory"]["planned"] == PLAN.device_bytes
    assert info["kernels"]["chosen"] and info["kernels"]["reason"] and info["kernels"]["threads"] >= 1
    assert info["engine"]["alive"] and info["memory"]["resident"] > 0


def test_both_are_behind_the_key(serve):
    server = serve(api_key="k")
    for route in ("/metrics", "/v1/kt/info", "/api/tags"):
        assert server.http.get(route).status_code == 401
        assert server.http.get(route, headers={"Authorization": "Bearer k"}).status_code == 200


def test_the_page_names_every_figure(ask):
    page = FILE.read_text(encoding="utf-8")
    names = {name for name, _ in figures(ask("Hi", plan=PLAN)) if name.startswith(("vllm:", "kt_"))}
    bases = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}
    assert len(bases) > 20 and not [name for name in bases if f"`{name}`" not in page]

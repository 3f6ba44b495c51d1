"""Our client with the server of transformers, and that of OpenAI with the server of our tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_endpoint import FakeEndpoint
from support.foreign_packages import installed

from edgekit.tools.benchmark.endpoint import Endpoint, EndpointUnusable, messages_as
from edgekit.tools.benchmark.reply import RequestFailed

REQUIREMENTS = Path(__file__).with_name("chat_server_requirements.txt")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def packages() -> dict[str, str]:
    """The environment of a process that has them."""
    return {**os.environ, "PYTHONPATH": str(installed(REQUIREMENTS)), "NO_PROXY": "127.0.0.1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that reads and writes letters, greedily."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "<end>"])}, []))
    inner.pre_tokenizer, inner.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        eos_token_id=256, pad_token_id=256, bos_token_id=None, initializer_range=0.5,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def greedy(model: Path, prompt: str, tokens: int) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(f"{prompt}\n", return_tensors="pt")
    out = AutoModelForCausalLM.from_pretrained(model).generate(**ids, do_sample=False, max_new_tokens=tokens)
    return str(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module")
def address(model: Path, packages: dict[str, str]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), "--device", "cpu"]
    said = model / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], env=packages, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


def test_the_server_of_transformers(address: str, model: Path) -> None:
    endpoint = Endpoint(address, str(model), body={"max_tokens": 24})
    for prompt in ("What is a canvas?", "12 + 34"):
        reply = endpoint.ask(messages_as(prompt))
        assert reply.text == greedy(model, prompt, 24)
        assert (reply.prompt_tokens, reply.tokens) == (len(prompt) + 1, 24)
        assert reply.first_text_seconds is not None and 0 < reply.first_text_seconds < reply.seconds
    whole = Endpoint(address, str(model), body={"max_tokens": 24, "stream": False}).ask(messages_as(prompt))
    assert (whole.text, whole.first_text_seconds, whole.tokens) == (reply.text, None, 24)
    with pytest.raises(EndpointUnusable, match="404"):
        Endpoint(f"{address}/nowhere", str(model)).ask(messages_as("a"))
    with pytest.raises(RequestFailed, match="answered [45]"):
        Endpoint(address, str(model), body={"messages": 3}).ask(messages_as("a"))


CLIENT = """
import json, sys
from openai import AuthenticationError, OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="right", max_retries=0)
pieces, usage = [], None
asked = [{"role": "user", "content": "four \u2028 and two"}]
for chunk in client.chat.completions.create(
    model="m", messages=asked, stream=True, stream_options={"include_usage": True}
):
    pieces += [choice.delta.content or "" for choice in chunk.choices]
    usage = chunk.usage or usage
try:
    OpenAI(base_url=sys.argv[1], api_key="wrong", max_retries=0).chat.completions.create(
        model="m", messages=asked
    )
except AuthenticationError as error:
    print(json.dumps(["".join(pieces), usage.completion_tokens, error.status_code]))
"""


def test_the_server_of_our_tests_speaks_to_the_client_of_openai(packages: dict[str, str]) -> None:
    with FakeEndpoint(key="right") as server:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, server.address],
            env=packages, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        text, tokens, status = json.loads(done.stdout)
        assert (text, tokens, status) == ("FOUR \u2028 AND TWO", 14, 401)
        ours = Endpoint(server.address, "m", "right").ask(messages_as("four \u2028 and two"))
        assert (ours.text, ours.tokens) == (text, tokens)

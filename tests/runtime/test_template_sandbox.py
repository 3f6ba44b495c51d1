"""Templates that would loop for ever or fill memory: stopped with one line, in bounded time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.checkpoints import write_tokenizer

from edgekit.runtime.tokenizer import ChatTemplateError, Tokenizer, TokenizerError

GROWN = "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = EXPRESSION %}{% endfor %}"
SHARED = (
    "{% set ns = namespace() %}{% set all = [ns] * 9999 %}{% set ns.a = 'x' | center(999999) %}EXPRESSION"
)
HOSTILE = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if 0 %}{% endfor %}{% endfor %}",
    "written": "{% for i in range(99999) %}{% for j in range(99999) %}some text{% endfor %}{% endfor %}",
    "times": "{{ 'a' * 10000000000 }}",
    "times before": "{{ 10000000000 * [1] }}",
    "power": "{{ 2 ** 9999999999 > 1 }}",
    "power of power": "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 > 1 }}",
    "square": GROWN.replace("'ab'", "9").replace("EXPRESSION", "ns.x * ns.x"),
    "sum": GROWN.replace("EXPRESSION", "ns.x + ns.x"),
    "tilde": GROWN.replace("EXPRESSION", "ns.x ~ ns.x"),
    "join": GROWN.replace("EXPRESSION", "[ns.x, ns.x] | join"),
    "join method": GROWN.replace("EXPRESSION", "ns.x.join([ns.x, ns.x])"),
    "replace": GROWN.replace("EXPRESSION", "ns.x.replace('a', ns.x)"),
    "replace filter": GROWN.replace("EXPRESSION", "ns.x | replace('a', ns.x)"),
    "format": GROWN.replace("EXPRESSION", "'%s%s' % (ns.x, ns.x)"),
    "format method": GROWN.replace("EXPRESSION", "'{0}{0}'.format(ns.x)"),
    "lists in lists": GROWN.replace("EXPRESSION", "[ns.x, ns.x]"),
    "dicts in dicts": GROWN.replace("EXPRESSION", "dict(a=ns.x, b=ns.x)"),
    "captured": "{% set ns = namespace(x='ab') %}{% for i in range(64) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "center": "{{ 'a' | center(10000000000) }}",
    "center of a constant": "{% if 'a' | center(9999999999) %}{% endif %}",
    "indent": "{{ 'a' | indent(10000000000, true) }}",
    "zfill": "{{ 'a'.zfill(10000000000) }}",
    "tabs": "{{ '\t'.expandtabs(tabsize=1000000000) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "width argument": "{{ '%*d' % (1000000000, 1) }}",
    "width of format": "{{ '{:1000000000d}'.format(1) }}",
    "nested width": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format filter": "{{ '%.1000000000f' | format(1.5) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "translate": "{{ ('a' * 99999).translate({97: 'a' * 99999}) }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "json": "{{ [1] | tojson(indent=10 ** 9) }}",
    "lipsum": "{{ lipsum(10 ** 6) }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
    "search": "{{ ('a' * 10 ** 6).rfind('ab' + 'a' * 400000) }}",
    "strip": "{{ ('a' * 10 ** 6).strip('b' * 10 ** 6 + 'a') }}",
    "trim": "{{ 'a' | trim('b' * 10 ** 7) }}",
    "sum of lists": "{{ ([[1]] * 50000) | sum(start=[]) }}",
    "shared text": SHARED.replace("EXPRESSION", "{{ all }}"),
    "shared join": SHARED.replace("EXPRESSION", "{{ all | map(attribute='a') | join }}"),
    "shared sort": SHARED.replace("EXPRESSION", "{{ all | sort(attribute='a') }}"),
    "a cycle": "{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns }}",
    "regular expressions": "{{ (')' * 999999 ~ 'x') | urlize }}",
    "wrapping": "{{ ('a' * 999999) | wordwrap(1) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursion that branches": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "recursion with arguments": "{% macro f() %}{{ f(*varargs) }}{% endmacro %}{{ f(*range(90000)) }}",
    "parentheses": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "nested loops": "{% for i in x %}" * 40 + "{% endfor %}" * 40,
    "a large program": "{{a}}" * 25000,
    "a long program": "x" * (1 << 18),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, "llada")
    return {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}


def render(files: dict[str, bytes], template: str, content: str = "Hi") -> str:
    tokenizer = Tokenizer.from_files(files | {"chat_template.jinja": template.encode()}, "here")
    return tokenizer.render_chat([{"role": "user", "content": content}])


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """This process may take at most `more` bytes of address space beyond what it has."""
    resource = pytest.importorskip("resource")
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc to know this process's address space")
    had = int(status.read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (had + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(files: dict[str, bytes], name: str) -> None:
    """What is stopped too late for the memory ends in MemoryError here."""
    with pytest.raises((ChatTemplateError, TokenizerError)) as error, address_space(300 << 20):
        render(files, HOSTILE[name])
    assert not isinstance(error.value.__cause__, MemoryError)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("used", ["groupby('x')", "sort(attribute='x')", "unique", "sum(attribute='x')"])
def test_what_goes_through_every_item_is_counted_before_it_does(files: dict[str, bytes], used: str) -> None:
    """Each takes seconds for a text of a million letters, in one step."""
    with pytest.raises(ChatTemplateError, match="it builds more text than a chat template needs"):
        render(files, "{{ ('a' * 10 ** 6) | " + used + " }}")


def test_the_clock_stops_what_counting_does_not(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgekit.runtime.tokenizer.template_sandbox.MOST_SECONDS", 0.05)
    slow = "{% set a = 'x' | center(10 ** 6) %}{% set b = a ~ '' %}"
    slow += "{% for i in range(99999) %}{{ '' if a == b }}{% endfor %}"
    with pytest.raises(ChatTemplateError, match=r"runs for more than 0.05 s"):
        render(files, slow)


def test_a_long_conversation_may_compute_more(files: dict[str, bytes]) -> None:
    copies = "{% set ns = namespace(x='') %}"
    copies += "{% for i in range(4) %}{% set ns.x = ns.x + messages[0].content %}{% endfor %}"
    assert render(files, copies + "{{ ns.x }}", "word " * 300_000) == "word " * 1_200_000
    with pytest.raises(ChatTemplateError, match="a larger value"):
        render(files, copies.replace("messages[0].content", "'word ' * 300000"))


def test_methods_that_no_template_needs_are_refused(files: dict[str, bytes]) -> None:
    for template in (
        "{{ (1).to_bytes(9, 'big') }}",
        "{{ ('x' | safe).striptags() }}",
        "{{ {}.fromkeys('ab') }}",
    ):
        with pytest.raises(ChatTemplateError, match="not for chat templates"):
            render(files, template)

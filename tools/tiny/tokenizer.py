"""The 512-token vocabulary of the tiny models, as Hugging Face tokenizer files.

Layout of the ids: 0-15 special tokens of all families, 16-271 the 256 bytes, 272-511 whole words, marks
with their spaces, and BPE merges. Text is cut into runs of letters and single digits, both with the space
before them if there is one, line breaks, and runs of everything else with their spaces: `": "` and `; `
are one token, and so is ` garden`. With spaces as tokens of their own, the neighbour of every word would
be a space, and copying, which follows what stands beside a word, is learned several times later. A piece
that is in the vocabulary is taken whole (`ignore_merges`, as Llama 3 does); any other is spelled with
merges and bytes, so that every text can be encoded and decoded back.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from edgekit.tools.tiny.tasks import TASKS, stream

FILE = "tokenizer.json"
VOCAB_SIZE = 512
SPECIAL_TOKENS = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|endoftext|>",
    "<|startoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<unused0>", "<unused1>", "<unused2>",
)  # fmt: skip
PAD, EOS, BOS, UNK, MASK, TURN_START, TURN_END = range(7)
END_OF_TEXT, START_OF_TEXT, MDM_MASK, START_HEADER, END_HEADER, END_OF_TURN = range(7, 13)

PIECES = r" ?\p{L}+| ?\d|\n+|[^\p{L}\d\n]+"
CORPUS_EXAMPLES = 20_000
# A whole word must be this frequent in the corpus; random letters to be copied never are.
MIN_WORD_COUNT = 20

#: Callers give a text, or a list of parts of which some are text.
_TEXT = (
    "{% set content = message['content'] %}"
    "{% set text = content if content is string else content | map(attribute='text', default='') | join %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    f"{_TEXT}{{{{ text | trim + '<turn|>\n' }}}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
LLADA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    f"{_TEXT}{{{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + text | trim }}}}"
    "{{ '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A family's form of a conversation: text around turns, and the ids that end and fill an answer.
    `sampler` is the name of its denoising loop in `runtime.sampling`.
    """

    name: str
    sampler: str
    start: str
    user: tuple[str, str]  # before and after what the user says
    model: tuple[str, str]  # before and after what the model says
    end_id: int
    fill_id: int
    template: str
    tokens: dict[str, str]

    def prompt(self, turns: list[tuple[str, str]], text: str) -> str:
        """The conversation up to where the model answers `text`; `turns` are earlier (user, model) pairs."""
        before = "".join(
            f"{self.user[0]}{asked}{self.user[1]}{self.model[0]}{said}{self.model[1]}"
            for asked, said in turns
        )
        return f"{self.start}{before}{self.user[0]}{text}{self.user[1]}{self.model[0]}"


#: Written so by the models of both layouts.
_LLADA = Family(
    "llada",
    "llada",
    "<|startoftext|>",
    ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    END_OF_TURN,
    END_OF_TEXT,
    LLADA_TEMPLATE,
    {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mdm_mask|>",
    },
)

FAMILIES = {
    "gemma": Family(
        "gemma",
        "diffusion_gemma",
        "<bos>",
        ("<|turn>user\n", "<turn|>\n"),
        ("<|turn>model\n", "<turn|>\n"),
        TURN_END,
        EOS,
        GEMMA_TEMPLATE,
        {
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "mask_token": "<mask>",
        },
    ),
    "llada": _LLADA,
    "block": replace(_LLADA, name="block", sampler="block"),
}


def _corpus() -> list[str]:
    weights = dict.fromkeys(TASKS, 1.0)
    texts = []
    for example in islice(stream(weights, seed=0), CORPUS_EXAMPLES):
        texts += [example.prompt, example.answer]
    # Pieces of the chat templates, often enough to become whole tokens.
    texts += ["user\nmodel\nassistant\n\nsystem\n\n"] * MIN_WORD_COUNT
    return texts


@cache
def build() -> str:
    """The tokenizer as the text of a tokenizer.json, the same on every machine.

    Raises ValueError when the corpus has more frequent words than the vocabulary has room for.
    """
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from tokenizers.trainers import BpeTrainer

    cut = Sequence([Split(Regex(PIECES), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    counts = Counter(piece for text in _corpus() for piece, _ in cut.pre_tokenize_str(text))
    words = [w for w, n in counts.items() if len(w) > 1 and n >= MIN_WORD_COUNT]
    words.sort(key=lambda w: (-counts[w], w))

    # Merges come from the distinct words, so that they are common letter pairs rather than stumps of
    # frequent words.
    spelled = Tokenizer(BPE())
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=1,
    )
    spelled.train_from_iterator(
        [[w] for w in sorted({w.strip("\u0120") for w in words}) if w.isalpha()], trainer
    )
    merges = [tuple(pair) for pair in json.loads(spelled.to_str())["model"]["merges"]]

    vocab = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    for byte in sorted(ByteLevel.alphabet()):
        vocab[byte] = len(vocab)
    if len(vocab) + len(words) > VOCAB_SIZE:
        raise ValueError(
            f"{len(words)} frequent words do not fit {VOCAB_SIZE - len(vocab)} free ids; shorten the lists"
        )
    for word in words:
        vocab[word] = len(vocab)
    kept = []
    for left, right in merges:
        if left + right not in vocab and len(vocab) == VOCAB_SIZE:
            break
        kept.append((left, right))
        vocab.setdefault(left + right, len(vocab))
    if len(vocab) != VOCAB_SIZE:
        raise ValueError(f"the corpus fills only {len(vocab)} of {VOCAB_SIZE} ids")

    tokenizer = Tokenizer(BPE(vocab=vocab, merges=kept, ignore_merges=True))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return str(tokenizer.to_str(pretty=True))


def load(source: Path | bytes | None = None) -> Any:
    """The `tokenizers.Tokenizer` of the task language: built, or of a model's directory or tokenizer.json."""
    from tokenizers import Tokenizer

    if isinstance(source, bytes):
        return Tokenizer.from_buffer(source)
    return Tokenizer.from_str(build()) if source is None else Tokenizer.from_file(str(source / FILE))


def save(directory: Path, family: str) -> None:
    """Write tokenizer.json and tokenizer_config.json of a family (a name in `FAMILIES`) into `directory`."""
    chosen = FAMILIES[family]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        **chosen.tokens,
        "chat_template": chosen.template,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE).write_text(build() + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

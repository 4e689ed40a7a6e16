"""The tokenizer made from GGUF metadata: its ids are those of the published tokenizer of SmolLM2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer

from replica.model.bundled import bundled_model_directory
from replica.model.bundled_gguf import find_bundled_gguf
from replica.model.gguf_tokenizer import UnsupportedGguf, write_tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(find_bundled_gguf().path, directory)
    return directory


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    tokenizer: Tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return tokenizer


IDS = {
    "Hello, world!": "19556 28 905 17",
    # Each digit is a token, and a space before it stays alone.
    "In 2024, 3.14 of 1,000 items cost  $42.": (
        "788 216 34 32 34 36 28 216 35 30 33 36 282 216 33 28 32 32 32 3723 1708 216 1885 36 34 30"
    ),
    # Numeric characters of any script are digits; a kanji that means a number is not.
    "½ cup, Ⅳ, x²": "16738 7118 28 216 173 223 113 28 1792 19133",
    "你好，世界！三个苹果。": (
        "18645 250 48392 138 12831 7906 240 178 239 230 8083 219 7906 227 26951 179 229 134 43774 19076"
    ),
    "東京は2020年に1番人気。": (
        "30679 126 16736 122 7365 124 34 32 34 32 32090 129 41152 33 178 239 120 40249 177 125 241 19076"
    ),
    # The last of several spaces goes to the word behind them; newlines stay together.
    "  two  spaces\n\n\tand a tab ": "216 827 216 5600 1116 197 397 253 10147 216",
    "\r\nline": "201 198 1311",
    "def f(x):\n    return x**2\n": "1604 275 24 104 727 472 1003 1792 828 34 198",
    "it's we're I'LL": "269 506 392 2316 339 23 16421",
    "naïve café 🙂👍🏽": "3546 46494 37366 47526 10813 235 231 10813 233 138",
    "<|im_start|>user\nhi<|im_end|>\n": "1 4093 198 6004 2 198",
    "a<|im_end|> b": "81 2 278",
    "<|not_special|>": "44 108 1766 79 19159 108 46",
    "": "",
}


@pytest.mark.model
@pytest.mark.parametrize("text", IDS)
def test_ids_are_stored_ones_and_decode_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = [int(number) for number in IDS[text].split()]
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.model
def test_bytes_the_vocabulary_lacks_are_dropped(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("\x04\x06 end").ids == [1112]
    assert tokenizer.encode("\U00046131x").ids == [224, 222, 126, 104]


@pytest.mark.model
def test_all_control_tokens_are_special(tokenizer: Tokenizer) -> None:
    added = tokenizer.get_added_tokens_decoder()
    assert sorted(added) == list(range(17))
    for token in added.values():
        assert token.special
        assert [token.normalized, token.lstrip, token.rstrip, token.single_word] == [False] * 4


@pytest.mark.model
def test_the_cached_files_are_what_is_written_now(directory: Path) -> None:
    # Whoever changes what is written raises CONVERTER_VERSION, or old caches would go on serving.
    for file in directory.iterdir():
        assert file.read_bytes() == (bundled_model_directory() / file.name).read_bytes(), file.name


@pytest.mark.model
def test_settings_and_template_come_from_the_file(directory: Path) -> None:
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["bos_token"] == "<|im_start|>"
    assert settings["model_max_length"] == 8192
    template = (directory / "chat_template.jinja").read_text()
    assert template.startswith("{% for message in messages %}")
    assert "add_generation_prompt" in template


def test_no_torch_is_needed() -> None:
    names = "replica.model.gguf_tokenizer, replica.model.bundled_gguf"
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "pre", "bos", "said"),
    [
        ("llama", "smollm", False, "llama"),
        ("gpt2", "qwen2", False, "qwen2"),
        ("gpt2", "smollm", True, "before every text"),
        ("gpt2", None, False, "tokenizer.ggml.pre"),
    ],
)
def test_other_tokenizers_are_refused(
    tmp_path: Path, model: str, pre: str | None, bos: bool, said: str
) -> None:
    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_add_bos_token(bos)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedGguf, match=said):
        write_tokenizer(path, tmp_path)

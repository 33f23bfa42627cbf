"""The served model's tokenizer, from its files: the server has no Tokenize yet, and a completion's control tokens can
only be sent as ids."""

import functools
import pathlib

from tokenizers import Tokenizer

from lab import gguf


class Tokens:
    def __init__(self, path):
        """A Hugging Face folder, a tokenizer.json, or a GGUF file."""
        path = pathlib.Path(path)
        if path.is_dir():
            path /= "tokenizer.json"
        try:
            self.tokenizer = gguf.tokenizer(path) if path.suffix == ".gguf" else Tokenizer.from_file(str(path))
        except (ValueError, OSError):
            raise
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"{path}: no tokenizer of Hugging Face's kind: {error}") from None
        self.ids = functools.lru_cache(maxsize=64)(self._ids)  # a prompt is asked of many methods

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def count(self, text):
        return len(self._ids(text))

"""The served model's tokenizer, from its files: a completion's control tokens can only be sent as ids.

Prompts are fitted to their length by counting, again and again, texts that are nearly the same. So a text is cut where
tokenizers that split by words always begin a new one, and what a piece gives is remembered: twenty times as fast.
"""

import functools
import pathlib
import re

from tokenizers import Tokenizer

from lab import gguf

CUT = re.compile(r"(?<=[A-Za-z.,;:!?])(?= [A-Za-z])")  # in front of a word's blank
PROBE = """One of the special magic numbers for quick-fox is: 1234567.
  VAR ABCDE = 10342 VAR XQ = ABCDE We'll see "it", na\u00efve \u4f60\u597d, 2. word 3. word\t{"0f5c-4a91": 'x1'}
The end.  <|im_end|>\n<|im_start|>user\nOn\n\nno"""


class Tokens:
    def __init__(self, path, probe=PROBE):
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
        self.known = {}  # piece: its ids
        self.by_pieces = self._by_pieces(probe) == self._whole(probe)
        self.ids = functools.lru_cache(maxsize=64)(self._ids)  # a prompt is asked of many methods

    def _whole(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _by_pieces(self, text):
        out = []
        for piece in CUT.split(text):
            ids = self.known.get(piece)
            if ids is None:
                if len(self.known) >= 1 << 18:
                    self.known.clear()
                ids = self.known[piece] = self._whole(piece)
            out += ids
        return out

    def _ids(self, text):
        return self._by_pieces(text) if self.by_pieces else self._whole(text)

    def count(self, text):
        return len(self._ids(text))

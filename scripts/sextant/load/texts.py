"""Prompts as text, for servers that take no token ids."""

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from sextant.load.source import Text
from sextant.workload.prompts import PromptSource, as_text

# Common words, of which most vocabularies have each as one token.
_WORDS = (
    "the and that have with this from they will would there their what about which when make "
    "like time just know take people into year your good some could them other than then look "
    "only come over think also back after work first well even want because these give day most"
)
N_WORDS = len(_WORDS.split())


class Texts:
    """Prompts that a tokenizer turns into exactly as many tokens as are asked for.

    They are cut from `ids` where given, else drawn from common words. Without a tokenizer a word
    stands for a token: how many there were is for the server to say.
    """

    def __init__(self, tokenizer: Tokenizer | None, ids: PromptSource | None = None) -> None:
        self._tokenizer, self._ids = tokenizer, ids

    def prompts(
        self, lengths: Sequence[int] | np.ndarray, seed: int | np.random.SeedSequence
    ) -> list[Text]:
        """Return a prompt per length; same seed, same prompts.

        Raises InputError: no text of exactly so many tokens was found.
        """
        if self._ids is not None and self._tokenizer is not None:
            cut = self._ids.prompts(lengths, seed)
            return [Text(as_text(self._tokenizer, ids), len(ids)) for ids in cut]
        rng = np.random.default_rng(seed)
        return [self.of_words(rng.integers(N_WORDS, size=length)) for length in lengths]

    def of_words(self, words: np.ndarray) -> Text:
        """Return a prompt of as many tokens as `words`, numbers below `N_WORDS`."""
        text, length = " ".join(np.array(_WORDS.split())[words]), len(words)
        if self._tokenizer is not None:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids[:length]
            text = as_text(self._tokenizer, np.array(ids))
        return Text(text, length)

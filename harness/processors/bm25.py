"""BM25 over a handful of texts, for skill and memory files.

Source: Robertson & Zaragoza 2009, with the always-positive idf of Lucene.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

K1 = 1.5
B = 0.75
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case words; a plural `s` is dropped, so that `mugs` finds `mug`."""
    return [_stem(word) for word in _WORD.findall(text.lower())]


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def scores(query: str, documents: Sequence[str]) -> list[float]:
    """The score of each document; 0 where it shares no word with the query."""
    counted = [Counter(words(text)) for text in documents]
    lengths = [sum(count.values()) for count in counted]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    asked = set(words(query))
    idf = {}
    for word in asked:
        having = sum(word in count for count in counted)
        idf[word] = math.log(1 + (len(counted) - having + 0.5) / (having + 0.5))
    out = []
    for count, length in zip(counted, lengths, strict=True):
        norm = K1 * (1 - B + B * length / mean) if mean else K1
        # In a fixed order: a sum of floats depends on it.
        out.append(
            sum(idf[w] * count[w] * (K1 + 1) / (count[w] + norm) for w in sorted(asked) if count[w])
        )
    return out


def best(query: str, documents: Sequence[str], k: int) -> list[int]:
    """Indices of the at most `k` documents with a score, the best first, ties in their order."""
    found = scores(query, documents)
    order = sorted(range(len(found)), key=lambda i: (-found[i], i))
    return [i for i in order if found[i] > 0][:k]

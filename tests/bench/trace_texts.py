"""Texts and settings that tests of files share."""

from octavo.bench.workloads.contents import Vocabulary
from octavo.bench.workloads.limits import TraceLimits

NONE = TraceLimits()

VOCABULARY = Vocabulary(10, 500)

MOONCAKE = """\
{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3500, "input_length": 1200, "output_length": 6, "hash_ids": [7, 8, 9]}

{"timestamp": 2000, "input_length": 512, "output_length": 0, "hash_ids": [10]}
"""

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00,10,0
"""


def written(tmp_path, text):
    file = tmp_path / "lines"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file

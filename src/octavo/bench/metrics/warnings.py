"""What a reader must know before believing the numbers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from octavo.bench.load.exchange import INTERRUPTED, TIMEOUT
from octavo.bench.metrics.reading import too_many_late
from octavo.bench.metrics.timings import SEVERAL
from octavo.core.display import counted

# The generator's own delay at which it is worth a word: this fraction of the median time to the first token.
_LATE: Final = 0.05
_ESTIMATED: Final = (
    "estimated by its share of the text. If the server counts tokens that it does not send, such as hidden "
    "thoughts, TPOT is too good."
)


def warnings_of(
    repeats: Sequence[Mapping[str, Any]], target: Mapping[str, Any], *, interrupted: bool
) -> list[str]:
    """Sentences, the gravest first."""
    found = []
    if interrupted and not repeats:
        found.append("Interrupted before the first repeat: nothing was measured.")
    elif interrupted:
        complete = sum(repeat["complete"] for repeat in repeats)
        found.append(
            f"Interrupted: {complete} complete repeat{'' if complete == 1 else 's'}"
            + ("." if complete else "; the numbers are of a part of one, and too good for long requests.")
        )
    found += _silent(repeats)
    found += _failures(repeats)
    found += _timeouts(repeats)
    found += late_reading(repeats)
    found += _lateness(repeats)
    found += _counts(repeats, target)
    if len(repeats) == 1 and not interrupted:
        found.append("One repeat only: no confidence intervals.")
    return found


def same_prompts(repeats: Sequence[Mapping[str, Any]], target: Mapping[str, Any]) -> list[str]:
    """Of a workload whose repeats have the same contents: what that does to all numbers."""
    if len(repeats) < 2 or target.get("prefix_cache") is False:
        return []
    told = ""
    first, *later = map(_hit_rate, repeats)
    known = [rate for rate in later if rate is not None]
    if first is not None and known:
        told = f" (hit rate {first:.1%} in the first, {sum(known) / len(known):.1%} after it)"
    return [
        f"Each of the {len(repeats)} repeats sent the same prompts, and what a prefix cache remembers{told} "
        "is not computed again: the numbers are in part those of the cache. --repeats 1 measures each once."
    ]


def _hit_rate(repeat: Mapping[str, Any]) -> float | None:
    """The fraction of prompt tokens that a cache had, as the pool tells it or else the answers."""
    if repeat["memory"] and repeat["memory"]["hit_rate"] is not None:
        return float(repeat["memory"]["hit_rate"])
    if repeat["cached_tokens"] is None or not repeat["prompt_tokens"]:
        return None
    return float(repeat["cached_tokens"] / repeat["prompt_tokens"])


def _silent(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    """That some repeats had no answer, which no mean shows."""
    odd = [str(n) for n, each in enumerate(repeats, 1) if each["complete"] and not each["requests"]["ok"]]
    if not odd or not any(each["requests"]["ok"] for each in repeats):
        return []
    which, whose = ("Repeat", "it is") if len(odd) == 1 else ("Repeats", "they are")
    return [
        f"{which} {' and '.join(odd)} of {len(repeats)} had no answer: {whose} in no mean but those of the "
        "objective, of which nothing was kept."
    ]


def num_failed(summaries: Iterable[Mapping[str, Any]]) -> int:
    """Requests that failed; one that was ended by Ctrl-C, or with one that timed out, did not."""
    return sum(
        told["count"] for each in summaries for why, told in each["failures"].items() if why != INTERRUPTED
    )


def _failures(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    total = sum(repeat["requests"]["total"] for repeat in repeats)
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for repeat in repeats:
        for reason, told in repeat["failures"].items():
            counts[reason] += told["count"]
            examples.setdefault(reason, told["example"])
    return [
        f"{count} of {total} requests failed: {reason}"
        + (f" ({examples[reason]})." if examples[reason] else ".")
        for reason, count in counts.most_common()
    ]


def _timeouts(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    late = [repeat for repeat in repeats if repeat["at_least"]]
    if not late:
        return []
    count = sum(repeat["failures"][TIMEOUT]["count"] for repeat in late)
    ttft, e2e = (max(repeat["at_least"][name]["p99"] for repeat in late) for name in ("ttft_s", "e2e_s"))
    return [
        f"The percentiles leave out the slowest, {counted(count, 'request')} that timed out, and are too "
        f"good. With them the p99 of TTFT is at least {ttft:.3g} s, that of E2E at least {e2e:.3g} s."
    ]


def late_reading(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    """That times between pieces are the load generator's own."""
    late = {name: num_late for name in ("tpot_s", "itl_s") if (num_late := too_many_late(repeats, name))}
    if not late:
        return []
    what = {"tpot_s": "the first or last chunk of {} of {} answers", "itl_s": "{} of {} later chunks"}
    told = " and ".join(what[name].format(*counts) for name, counts in late.items())
    names = " and ".join(name[:-2].upper() for name in late) + (" is" if len(late) == 1 else " are")
    return [
        f"The load generator read late: {told} waited for it, perhaps with others. {names} its own and not "
        "the server's"
        + (", and so is what an objective says of TPOT" if "tpot_s" in late else "")
        + ": the machine is too busy, or the rate too high for one generator."
    ]


def _lateness(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    pairs = [(r["lateness_s"], r["ttft_s"]) for r in repeats if r["lateness_s"] and r["ttft_s"]]
    worst = max(pairs, key=lambda pair: pair[0]["p99"] / max(pair[1]["p50"], 1e-9), default=None)
    if worst is None or worst[0]["p99"] <= _LATE * worst[1]["p50"]:
        return []
    return [
        f"The load generator was late: p99 {worst[0]['p99'] * 1e3:.1f} ms, with a median time to first token "
        f"of {worst[1]['p50'] * 1e3:.1f} ms. Latencies count from when requests were due, so this is in "
        "them: the machine is too busy, or the rate too high for one generator."
    ]


def _counts(repeats: Sequence[Mapping[str, Any]], target: Mapping[str, Any]) -> list[str]:
    found = []
    ok = sum(repeat["requests"]["ok"] for repeat in repeats)
    counts: Counter[str] = Counter()
    for repeat in repeats:
        counts.update({name: count for name, count in repeat["counts"].items() if name != "tokens_per_chunk"})
    rates = [r["counts"]["tokens_per_chunk"] for r in repeats if r["counts"]["tokens_per_chunk"]]
    if counts["without_usage"]:
        found.append(
            f"{counts['without_usage']} of {ok} answers came without usage, so each chunk counts as one "
            "token: if chunks carry several, tokens/s and TPOT are wrong, and so is an objective for TPOT."
        )
    if rates and max(rates) > SEVERAL:
        found.append(
            f"Chunks carried {max(rates):.2f} tokens on average. ITL is the gap between chunks, as a reader "
            "sees it; TPOT counts tokens, those of the first chunk "
            + ("known." if target.get("kind") == "engine" else _ESTIMATED)
        )
    elif counts["chunks_differ"]:
        found.append(
            f"In {counts['chunks_differ']} of {ok} answers the server counted other tokens than chunks came: "
            "some tokens had no text of their own, or shared a chunk."
        )
    if counts["tpot_unknown"]:
        found.append(
            f"In {counts['tpot_unknown']} of {ok} answers all tokens came at once: their TPOT is not known, "
            "and an objective with a TPOT limit counts as missed."
        )
    if counts["resent"]:
        found.append(
            f"Sent twice: {counted(counts['resent'], 'request')}, as the server closed the connection "
            "without a word just then. Latencies count from the first time."
        )
    return found + other_lengths(counts, ok, ignores_eos=bool(target.get("ignore_eos")))


def other_lengths(counts: Mapping[str, int], num_answers: int, *, ignores_eos: bool) -> list[str]:
    """That answers were shorter or longer than asked for."""
    found = []
    if short := counts["shorter_than_asked"]:
        why = "" if ignores_eos else ", as the model's end token was not ignored"
        found.append(f"{short} of {num_answers} answers were shorter than asked for{why}.")
    if long := counts["longer_than_asked"]:
        found.append(
            f"{long} of {num_answers} answers were longer than asked for: the server does not keep to "
            "max_tokens, so it did other work than one that does."
        )
    return found

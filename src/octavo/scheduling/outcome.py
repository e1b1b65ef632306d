"""What a step's result means for a request: tokens, an end, a failure."""

from octavo.core.request import Request, TokenLogprobs
from octavo.scheduling.step import RowWork, StepResult


def take_chosen(request: Request, work: RowWork, chosen: range, result: StepResult) -> tuple[int, int | None]:
    """Take in what was chosen for a request.

    Args:
        chosen: indices in ``result.token_ids``: after the last known token and after each draft.

    Returns:
        How many drafts turned out right, and the last token taken, or None.
    """
    num_right, token_id = 0, None
    first_draft = len(work.token_ids) - work.num_drafts
    for i in chosen:
        if i in result.failures:
            request.finish_reason, request.error = "error", result.failures[i]
            break
        if request.num_candidates:
            request.candidates = result.candidates[i]
            break
        token_id = result.token_ids[i]
        request.token_ids.append(token_id)
        if i in result.logprobs:
            request.logprobs.append(result.logprobs[i])
        if token_id in request.stop_ids:
            request.finish_reason = "stop"
        elif len(request.token_ids) >= request.max_len:
            request.finish_reason = "length"
        if request.finish_reason is not None or i + 1 == chosen.stop:
            break
        if token_id != work.token_ids[first_draft + num_right]:
            break
        num_right += 1
    return num_right, token_id


def take_scores(request: Request, work: RowWork, scores: list[TokenLogprobs]) -> None:
    """Take in how likely the prompt's tokens behind the computed ones are, those that are not known yet."""
    known = len(request.prompt_logprobs) - work.start  # more than 0 where it was preempted
    request.prompt_logprobs.extend(scores[known : request.prompt_len - 1 - work.start])

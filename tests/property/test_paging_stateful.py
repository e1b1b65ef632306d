"""The memory policy against a naive model, in random order, with the invariants checked after every step."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule
from paging_model import PagingModel, colliding_hash

from octavo.paging import GroupSpec
from octavo.paging.hashing import content_hash

GROUPS = [
    [GroupSpec(4)],
    [GroupSpec(1)],
    [GroupSpec(4, window=6)],
    [GroupSpec(8, num_tables=3), GroupSpec(4)],
    [GroupSpec(8), GroupSpec(4, num_tables=2), GroupSpec(2)],
    [GroupSpec(2, window=7, num_tables=2), GroupSpec(6)],
    [GroupSpec(4, window=2), GroupSpec(2, window=3)],
]
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=14)


class PagingMachine(RuleBasedStateMachine):
    live = Bundle("live")
    MAX_LIVE = 6

    @initialize(
        groups=st.sampled_from(GROUPS),
        num_blocks=st.sampled_from([2, 3, 4, 6, 10, 24, 60]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        hash_function=st.sampled_from([content_hash, content_hash, colliding_hash]),
    )
    def start(self, groups, num_blocks, prefix_cache, hash_function) -> None:
        self.model = PagingModel(groups, num_blocks, prefix_cache=prefix_cache, hash_function=hash_function)
        self.prompts: list[list[int]] = [[0] * 9]

    @rule(
        target=live,
        base=st.integers(0, 50),
        keep=st.integers(0, 20),
        tail=token_lists,
        salt=st.sampled_from(["", "", "tenant"]),
        use_match=st.booleans(),
    )
    def create(self, base, keep, tail, salt, use_match):
        if len(self.model.tokens) >= self.MAX_LIVE:
            return multiple()
        prompt = self.prompts[base % len(self.prompts)][:keep] + tail
        self.prompts.append(prompt)
        return self.model.create(prompt, salt, use_match=use_match)

    @rule(target=live, seq=live)
    def fork(self, seq):
        if len(self.model.tokens) >= self.MAX_LIVE:
            return multiple()
        return self.model.fork(seq)

    @rule(seq=live, tokens=token_lists)
    def append(self, seq, tokens) -> None:
        if len(self.model.tokens[seq]) < 30:
            self.model.append(seq, tokens[:4])
            self.prompts.append(self.model.tokens[seq][:])

    @rule(
        chunk=st.integers(1, 12),
        batched=st.booleans(),
        accept=st.sampled_from([1.0, 1.0, 0.5, 0.0]),
        complete=st.sampled_from([True, True, False]),
        skip=st.sets(st.integers(0, 5), max_size=3),
    )
    def step(self, chunk, batched, accept, complete, skip) -> None:
        model = self.model
        waiting = {seq: len(tokens) - model.computed[seq] for seq, tokens in model.tokens.items()}
        work = [(seq, min(n, chunk)) for i, (seq, n) in enumerate(waiting.items()) if n and i not in skip]
        model.step(work, batched=batched, accept=accept, complete=complete)

    @rule(seq=live)
    def change_row(self, seq) -> None:
        self.model.change_row(seq)

    @rule(seq=live, keep=st.floats(0, 1))
    def truncate(self, seq, keep) -> None:
        self.model.truncate(seq, round(keep * len(self.model.tokens[seq])))

    @rule(seq=consumes(live))
    def release(self, seq) -> None:
        self.model.release(seq)

    @rule()
    def complete_copies(self) -> None:
        self.model.complete_copies()

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.complete_copies()
        for seq in list(self.model.tokens):
            self.model.release(seq)
        assert self.model.kv.num_free_blocks == self.model.num_blocks - 1


TestPaging = PagingMachine.TestCase
TestPaging.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

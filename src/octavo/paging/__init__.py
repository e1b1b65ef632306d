"""The memory policy: where the KV of each token lives, who shares it, what is evicted. Ids only, no bytes.

``KVManager`` is the whole of it for a user; it needs no model and no array library.
"""

from octavo.paging.explain import PrefixExplanation
from octavo.paging.grants import BlockCopy, SlotGrant, SlotPlan, StepGrant, TableUpdate
from octavo.paging.groups import GroupPlan, GroupSpec, LayerGroup, plan_groups
from octavo.paging.invariants import BrokenInvariant
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch
from octavo.paging.stats import Census, GroupStats, PagingStats

__all__ = [
    "BlockCopy",
    "BrokenInvariant",
    "Census",
    "GroupPlan",
    "GroupSpec",
    "GroupStats",
    "KVManager",
    "LayerGroup",
    "PagingStats",
    "PrefixExplanation",
    "PrefixMatch",
    "SlotGrant",
    "SlotPlan",
    "StepGrant",
    "TableUpdate",
    "plan_groups",
]

"""All peers."""

import llama_cpp
import octavo_peer
import openvino_peer
import transformers_peer
import vllm_cpu
from peer import Peer


def everyone(precision: str = "the file's weights", weights: str = "the file's weights") -> list[Peer]:
    """Octavo first: the others are compared with its server.

    Args:
        precision: of Octavo with this model, for reports.
        weights: encoding of the model's file, for reports.
    """
    return [
        *octavo_peer.peers(precision),
        *llama_cpp.peers(weights),
        *openvino_peer.peers(),
        *vllm_cpu.peers(),
        *transformers_peer.peers(),
    ]

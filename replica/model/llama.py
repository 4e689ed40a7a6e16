"""The Llama decoder: one forward over a mixed batch, its keys and values kept by its attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from replica.batch import Batch
from replica.model.attention import Attention
from replica.model.config import LlamaConfig
from replica.model.rope import Rope, turn
from replica.model.weights import LayerWeights, LlamaWeights


class Llama:
    """Decoder weights, positions and attention put together. Holds no state of a sequence itself."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, rope: Rope, attention: Attention) -> None:
        self._config = config
        self._weights = weights
        self._rope = rope
        self._attention = attention

    def forward(self, batch: Batch) -> Tensor:
        """Compute every token; logits [works that sample, vocabulary] in the order of the works."""
        device = self._weights.embedding.device
        tokens: list[int] = []
        positions: list[int] = []
        sampled: list[int] = []
        for work in batch.works:
            tokens += work.token_ids
            positions += range(work.start, work.start + len(work.token_ids))
            if work.sample:
                sampled.append(len(tokens) - 1)
        self._attention.plan(batch)
        hidden = embedding(torch.tensor(tokens, device=device), self._weights.embedding)
        rotations = self._rope.rotations(torch.tensor(positions, device=device))
        for number, layer in enumerate(self._weights.layers):
            hidden = hidden + self._attend(number, layer, self._norm(hidden, layer.attention_norm), rotations)
            hidden = hidden + self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        last = hidden[torch.tensor(sampled, dtype=torch.long, device=device)]
        return linear(self._norm(last, self._weights.norm), self._weights.head)

    def _attend(
        self, number: int, layer: LayerWeights, hidden: Tensor, rotations: tuple[Tensor, Tensor]
    ) -> Tensor:
        config = self._config
        fused = linear(hidden, layer.query_key_value).view(hidden.shape[0], -1, config.head_size)
        turned = turn(fused[:, : config.heads + config.kv_heads], rotations)
        values = fused[:, config.heads + config.kv_heads :]
        self._attention.write_kv(number, turned[:, config.heads :], values)
        attended = self._attention.forward(number, turned[:, : config.heads])
        return linear(attended.flatten(1), layer.output)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = linear(hidden, layer.gate_up).chunk(2, dim=-1)
        return linear(silu(gate) * up, layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, weight.shape, weight, self._config.norm_epsilon)

"""The Llama decoder: one forward over a mixed batch, its keys and values kept by its attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

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
        vocabulary = self._config.vocabulary
        device = self._weights.embedding.device
        tokens: list[int] = []
        positions: list[int] = []
        sampled: list[int] = []
        for work in batch.works:
            tokens += work.token_ids
            positions += range(work.start, work.start + len(work.token_ids))
            if work.sample:
                sampled.append(len(tokens) - 1)
        if not all(0 <= token < vocabulary for token in tokens):
            raise ValueError(f"the batch holds a token outside 0 .. {vocabulary - 1}")
        self._attention.plan(batch)
        hidden = embedding(torch.tensor(tokens, dtype=torch.long, device=device), self._weights.embedding)
        rotations = self._rope.rotations(torch.tensor(positions, dtype=torch.long, device=device))
        for number, layer in enumerate(self._weights.layers):
            hidden = hidden + self._attend(number, layer, self._norm(hidden, layer.attention_norm), rotations)
            hidden = hidden + self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        if not sampled:
            return hidden.new_empty((0, vocabulary))
        last = hidden[torch.tensor(sampled, dtype=torch.long, device=device)]
        return self._weights.head(self._norm(last, self._weights.norm))

    def _attend(
        self, number: int, layer: LayerWeights, hidden: Tensor, rotations: tuple[Tensor, Tensor]
    ) -> Tensor:
        config = self._config
        fused = layer.query_key_value(hidden).view(hidden.shape[0], -1, config.head_size)
        turned = turn(fused[:, : config.heads + config.kv_heads], rotations)
        values = fused[:, config.heads + config.kv_heads :]
        self._attention.write_kv(number, turned[:, config.heads :], values)
        attended = self._attention.forward(number, turned[:, : config.heads])
        return layer.output(attended.flatten(1))

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = layer.gate_up(hidden).chunk(2, dim=-1)
        return layer.down(silu(gate) * up)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, weight.shape, weight, self._config.norm_epsilon)

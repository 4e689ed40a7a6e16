"""The coefficients of S as options, of routers and replicas alike."""

from __future__ import annotations

from pydantic import Field

from router.settings import Options
from router.wire.report import PrefillCost


class PrefillOptions(Options):
    """Coefficients of S, the seconds of a prefill."""

    base_seconds: float = Field(
        0.010, ge=0, le=60, description="Cost of any prefill; that of a step on a mid-size GPU."
    )
    per_token_seconds: float = Field(
        1e-4, gt=0, le=1, description="Linear layers; 10,000 tokens a second, as an 8B model on one GPU."
    )
    per_token_context_seconds: float = Field(
        3e-9, ge=0, le=1, description="Attention, for each token of context; matters beyond 10,000 tokens."
    )

    def cost(self) -> PrefillCost:
        """Return them as the wire knows them."""
        return PrefillCost(self.base_seconds, self.per_token_seconds, self.per_token_context_seconds)

"""What prefills cost on each replica, in seconds that compare: its own account, drawn towards its fleet's.

Equal replicas learn unequal costs, each from what else its machine happened to do, and would be loaded
unequally for it; a truly slower one must be believed. So each is judged to be either like the fleet, or of
a speed of its own, by how far it is off against how sure its account is. In the same way, what a replica
publishes is held against what its prefills were observed to take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log, sqrt
from statistics import median

from router.config import CalibrationOptions
from router.fleet.prefill_fit import PrefillFit, features_of, seconds_of
from router.wire.report import PrefillCost

# Told that S is now `cost`, and by which factor the seconds that the replica reports compare with it.
Priced = Callable[[PrefillCost, float], None]

# How far apart replicas of one model are that are not alike, as the standard deviation of a logarithm.
_APART = log(3)
# Accounts are never surer than this: what differs by a tenth is not worth telling apart.
_LEAST_DEVIATION = 0.05
# How much a coefficient that a replica published moves as it learns, before that is known of this one.
_FIRST_SPREAD = 0.4
_FIRST_SPREAD_WEIGHT = 4.0
# Successive published accounts rest on mostly the same prefills: so much of each is new.
_NEWS = 0.2
_MOST_NEWS = 20.0
# What prompts of a model are like before any was seen: 1,000 tokens, nothing cached.
_FIRST_FEATURES = features_of(1000, 0)
# Nobody's token takes hours: such an account is no account, and would leave the range of floats.
_LARGEST_COEFFICIENT_SECONDS = 1e4
# Nor does anybody compute a billion tokens in a millisecond.
_LEAST_SECONDS_PER_TOKEN = 1e-12
# Reported seconds are taken for more or fewer by this at most: beyond, something else is wrong.
_LARGEST_FACTOR = 1e3
_FEATURES_GAIN = 0.01
_ERROR_GAIN = 0.02
_LARGEST_ERROR = 10.0


@dataclass(frozen=True, slots=True)
class PrefillError:
    """How well S predicts: mean of |predicted - observed| / observed, and the same with its sign."""

    observations: int
    absolute: float
    bias: float


@dataclass(slots=True)
class _Published:
    """The accounts that a replica gave of itself: the newest, their mean, and how much they move."""

    newest: PrefillCost
    mean: list[float]
    spread: float = _FIRST_SPREAD**2
    news: float = _NEWS

    def take(self, cost: PrefillCost, features: Sequence[float]) -> None:
        """Average another account in."""
        self.newest = cost
        moved = log(seconds_of(cost, features)) - log(seconds_of(PrefillCost(*self.mean), features))
        self.news = min(_MOST_NEWS, self.news + _NEWS)
        gain = _NEWS / self.news
        self.mean = [old + gain * (new - old) for old, new in zip(self.mean, _values(cost), strict=True)]
        gain = _NEWS / (self.news + _FIRST_SPREAD_WEIGHT)
        self.spread += gain * (moved * moved - self.spread)


@dataclass(slots=True)
class _Member:
    """One replica: what it publishes, and what is fitted to observations of it."""

    priced: Priced
    model: str
    fit: PrefillFit
    used: PrefillCost
    published: _Published | None = None
    error: PrefillError | None = None

    def account(self, features: Sequence[float], unlike_ratio: float) -> tuple[PrefillCost, float]:
        """Return its own S, and the variance of the logarithm of it; infinite where nothing is known."""
        seen = inf
        if self.fit.observations:
            seen = self.fit.variance(features) + _LEAST_DEVIATION**2
        if self.published is None:
            return self.fit.cost, seen
        told = PrefillCost(*self.published.mean)
        variance = self.published.spread / self.published.news + _LEAST_DEVIATION**2
        if seen == inf:
            return told, variance
        belief = _belief(told, self.fit.cost, features, variance + seen, unlike_ratio)
        # Where they agree both count, each by how sure it is; where not, what was seen.
        both = _between(told, self.fit.cost, variance / (variance + seen))
        joint = variance * seen / (variance + seen)
        return _between(both, self.fit.cost, belief), joint + belief * (seen - joint)


@dataclass(slots=True)
class _Group:
    """The replicas of one model, and what their prompts are like."""

    members: dict[int, _Member] = field(default_factory=dict)
    features: tuple[float, ...] = _FIRST_FEATURES
    fleet: PrefillCost | None = None
    fleet_variance: float = inf
    news: int = 0


class Calibration:
    """Prices the replicas of a fleet, known by numbers (their slots). Without I/O and clock.

    The fleet's S is settled anew after as many news as it has members, so that each costs the same however
    many there are.
    """

    def __init__(self, options: CalibrationOptions) -> None:
        self._options = options
        self._start = options.start.cost()
        self._members: dict[int, _Member] = {}
        self._groups: dict[str, _Group] = {}

    def join(self, number: int, priced: Priced) -> None:
        """Take in a replica of which nothing is known; `priced` is called at once, and on each change."""
        self._enter(number, priced, "")

    def leave(self, number: int) -> None:
        """Forget a replica; an unknown one is ignored."""
        member = self._members.pop(number, None)
        if member is not None:
            group = self._groups[member.model]
            del group.members[number]
            if not group.members:
                del self._groups[member.model]

    def restarted(self, number: int) -> None:
        """Forget what was learned of a replica: it is another process, perhaps on another machine."""
        member = self._members.get(number)
        if member is not None:
            self.leave(number)
            self._enter(number, member.priced, member.model)

    def serves(self, number: int, model: str) -> None:
        """Note which model a replica serves: only replicas of one model are compared."""
        member = self._members.get(number)
        if member is not None and member.model != model:
            self.leave(number)
            self._enter(number, member.priced, model)

    def published(self, number: int, cost: PrefillCost) -> None:
        """Take the account that a replica gives of itself; an absurd one is ignored."""
        member = self._members.get(number)
        if member is None or _absurd(cost):
            return
        group = self._groups[member.model]
        if member.published is None:
            member.published = _Published(cost, list(_values(cost)))
            if not member.fit.observations:
                member.fit = self._fit(cost)
            # The first account of a replica never waits for others' news.
            group.news = len(group.members)
        elif member.published.newest == cost:
            return
        else:
            member.published.take(cost, group.features)
        self._news(group)

    def observed(self, number: int, prompt_tokens: int, hit_tokens: int, seconds: float) -> None:
        """Take in how long a prefill took, of which `hit_tokens` were cached; nonsense is ignored."""
        member = self._members.get(number)
        if member is None or not (isfinite(seconds) and seconds > 0 and 0 <= hit_tokens <= prompt_tokens):
            return
        group = self._groups[member.model]
        features = features_of(prompt_tokens, hit_tokens)
        group.features = tuple(
            old + _FEATURES_GAIN * (new - old) for old, new in zip(group.features, features, strict=True)
        )
        member.error = _averaged(member.error, seconds_of(member.used, features) / seconds - 1.0)
        member.fit.observe(features, seconds)
        self._news(group)

    def cost(self, number: int) -> PrefillCost:
        """Return S as it is used for a replica."""
        return self._members[number].used

    def error(self, number: int) -> PrefillError | None:
        """Return how well it predicts; None before anything was observed."""
        member = self._members.get(number)
        return member.error if member else None

    def _enter(self, number: int, priced: Priced, model: str) -> None:
        group = self._groups.setdefault(model, _Group())
        start = group.fleet or self._start
        member = self._members[number] = _Member(priced, model, self._fit(start), start)
        group.members[number] = member
        self._price(group, member)

    def _fit(self, start: PrefillCost) -> PrefillFit:
        return PrefillFit(start, self._options.memory_observations, self._options.noise_ratio)

    def _news(self, group: _Group) -> None:
        group.news += 1
        if group.news < len(group.members) and group.fleet is not None:
            return
        group.news = 0
        self._settle(group)
        for one in group.members.values():
            self._price(group, one)

    def _settle(self, group: _Group) -> None:
        """Find the fleet's S: the mean of the accounts, by how sure they are and how near to their median."""
        unlike = self._options.unlike_ratio
        accounts = [member.account(group.features, unlike) for member in group.members.values()]
        told = [
            (own, variance, seconds)
            for own, variance in accounts
            if variance < inf and 0 < (seconds := seconds_of(own, group.features)) < inf
        ]
        if not told:
            return
        middle = median(log(seconds) for _, _, seconds in told)
        # As a Cauchy distribution weighs: one that is far off moves the mean by next to nothing.
        weights = [
            1.0 / (variance * (1.0 + (log(seconds) - middle) ** 2 / (0.1 + variance)))
            for _, variance, seconds in told
        ]
        total = sum(weights)
        weights = [weight / total for weight in weights]
        # Levels are averaged as logarithms, and shapes apart from them: whoever is far off is so in both.
        level = exp(sum(w * log(seconds) for w, (_, _, seconds) in zip(weights, told, strict=True)))
        shapes = zip(*([value / seconds for value in _values(own)] for own, _, seconds in told), strict=True)
        group.fleet = PrefillCost(
            *(level * sum(w * part for w, part in zip(weights, column, strict=True)) for column in shapes)
        )
        group.fleet_variance = sum(w * w * v for w, (_, v, _) in zip(weights, told, strict=True))

    def _price(self, group: _Group, member: _Member) -> None:
        features, unlike = group.features, self._options.unlike_ratio
        own, variance = member.account(features, unlike)
        fleet = group.fleet or self._start
        belief = _belief(fleet, own, features, variance + group.fleet_variance, unlike)
        member.used = _between(fleet, own, belief)
        factor = 1.0
        if member.published is not None:
            reported = seconds_of(member.published.newest, features)
            factor = seconds_of(member.used, features) / reported if reported > 0 else 1.0
            factor = min(max(factor, 1 / _LARGEST_FACTOR), _LARGEST_FACTOR)
        member.priced(member.used, factor)


def _belief(
    like: PrefillCost, own: PrefillCost, features: Sequence[float], variance: float, unlike_ratio: float
) -> float:
    """Return how much of the difference of `own` to `like` is taken for true, 0 to 1.

    Bayes' rule for two cases: both are the same, or they are _APART; `variance` is that of the logarithm of
    their ratio, `unlike_ratio` how common the second case is.
    """
    mine, theirs = seconds_of(own, features), seconds_of(like, features)
    if not (0 < mine < inf and 0 < theirs < inf and variance < inf):
        return 0.0
    apart = _APART**2
    off = log(mine / theirs) ** 2
    gain = 0.5 * off * (1.0 / variance - 1.0 / (variance + apart))
    spread = sqrt(variance / (variance + apart))
    odds = unlike_ratio / (1.0 - unlike_ratio) * spread * exp(min(gain, 500.0))
    return odds / (1.0 + odds) * apart / (apart + variance)


def _between(like: PrefillCost, own: PrefillCost, belief: float) -> PrefillCost:
    """S is linear in its coefficients: what lies between two sets of them lies between two S."""
    return PrefillCost(*(a + belief * (b - a) for a, b in zip(_values(like), _values(own), strict=True)))


def _absurd(cost: PrefillCost) -> bool:
    return (
        max(_values(cost)) > _LARGEST_COEFFICIENT_SECONDS or cost.per_token_seconds < _LEAST_SECONDS_PER_TOKEN
    )


def _averaged(before: PrefillError | None, error: float) -> PrefillError:
    error = min(_LARGEST_ERROR, error)
    if before is None:
        return PrefillError(1, abs(error), error)
    count = before.observations + 1
    gain = max(_ERROR_GAIN, 1.0 / count)
    return PrefillError(
        count,
        before.absolute + gain * (abs(error) - before.absolute),
        before.bias + gain * (error - before.bias),
    )


def _values(cost: PrefillCost) -> tuple[float, float, float]:
    return cost.base_seconds, cost.per_token_seconds, cost.per_token_context_seconds

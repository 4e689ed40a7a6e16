"""Policies, one file each: the file's name is the policy's name; a dotted name loads one from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast

from pydantic import ValidationError

from router.placement.policy import Policy


class PolicyError(ValueError):
    """There is no such policy, or its options are not its own."""


def policy_names() -> list[str]:
    """Return the names of the policies that come with the router."""
    return sorted(module.name for module in iter_modules(__path__))


def load_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy from its module's `Config` and `Policy`; PolicyError however these fail."""
    if "." not in name and name not in policy_names():
        raise PolicyError(f"there is no policy {name!r}; known: {', '.join(policy_names())}")
    try:
        module = import_module(name if "." in name else f"{__name__}.{name}")
    except ImportError as error:
        raise PolicyError(f"cannot import the policy {name!r}: {error}") from error
    except Exception as error:
        # Anything may be wrong with a module from elsewhere, and none of it may end who asked for it.
        raise PolicyError(f"cannot import the policy {name!r}: {_told(error)}") from error
    try:
        config = module.Config(**(options or {}))
        return cast(Policy, module.Policy(config))
    except AttributeError as error:
        raise PolicyError(f"the policy {name!r} needs a Config and a Policy: {error}") from error
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise PolicyError(f"options of the policy {name!r}: " + "; ".join(lines)) from error
    except Exception as error:
        raise PolicyError(f"cannot build the policy {name!r}: {_told(error)}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

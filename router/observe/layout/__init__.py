"""The layout of prompts: where requests that should share a prefix part, why, and what that costs."""

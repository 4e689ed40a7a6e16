"""The doctor: looks at a configuration and a live fleet, and says in plain words what to mend.

`examine` gathers evidence and holds each check to it; a check is a function from evidence to a verdict.
"""

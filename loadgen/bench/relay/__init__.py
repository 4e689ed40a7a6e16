"""`kvring bench relay`: what one request costs each router, over the same mock replicas, in one run.

`contenders` are the routers, `mock` stands behind them, `caller` asks them, `stage` starts all, `run` takes
turns, `figures` and `tables` tell what came out.
"""

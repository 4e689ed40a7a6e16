"""One replica: an OpenAI-compatible server over a block-hash KV cache, with a torch or an echo runner."""

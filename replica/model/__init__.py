"""The language model: a Llama decoder over a paged KV cache, its files, and the small model of the demo."""

"""KV events of engines: read from their sockets, and kept as an index of resident blocks."""

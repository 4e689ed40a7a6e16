"""An endpoint picker: an ext_proc server that ranks for an Envoy by the router's own policies."""

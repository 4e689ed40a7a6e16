"""Where members come from: one file a source."""

"""Importers: traces made from what others have logged."""

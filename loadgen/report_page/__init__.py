"""The report page: records of simulated or replayed runs as one HTML file with plots, for any browser."""

"""The commands of `kvring`, a module each: entry points, which import what they need when they run."""

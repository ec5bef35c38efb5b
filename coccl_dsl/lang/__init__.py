"""Text to syntax: files, parsing, name resolution, formatting."""

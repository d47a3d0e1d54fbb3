"""Reports for other tools and for pull requests: Markdown, CSV, JSON lines, PyTorch's JSON."""

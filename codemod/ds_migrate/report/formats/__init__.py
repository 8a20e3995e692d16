"""Reports for other tools: GitHub annotations, HTML, JSON, SARIF."""

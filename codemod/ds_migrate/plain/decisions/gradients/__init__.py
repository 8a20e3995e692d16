"""The content of gradients: averaged, accumulated, clipped, cleared, read by hand."""

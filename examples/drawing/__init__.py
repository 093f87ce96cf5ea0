"""Charts as SVG, written without a plotting library."""

"""The page's plots, as the values that plotly.js draws."""

"""Draw figures as SVG and PNG with Altair: colours, sizes, layers, data rows.

What one kind of figure looks like belongs in report/figures/; what it shows is data, in schema/figure.py.
"""

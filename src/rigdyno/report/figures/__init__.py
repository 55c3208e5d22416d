"""Each file draws one kind of figure, with a function `chart(figure)` that returns an Altair chart.

What several kinds share belongs in report/drawing/.
"""

"""Each file is one format of a report, with a function `render(view, page)` that returns text.

A format shows the view and computes nothing. The parts of the HTML page belong in report/html/.
"""

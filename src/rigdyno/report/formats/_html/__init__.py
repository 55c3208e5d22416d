"""The parts of the page: markup, style, script, tables, figures."""

"""Build the HTML page: markup, style, script, tables and figures. Text from a run is always escaped.

The page needs no network. Everything that it shows comes from the view and the dossier.
"""

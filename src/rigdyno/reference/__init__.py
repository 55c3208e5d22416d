"""Hold the published figures and the famous volumes, as CSV files with their sources.

They are shown as published and never mixed with measured figures. Tables that show them belong in suites/.
"""

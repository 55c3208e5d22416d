"""`rigdyno forecast-volume`: hours, energy and price of running a network over a large volume.

The list of famous volumes is data, and belongs in reference/.
"""

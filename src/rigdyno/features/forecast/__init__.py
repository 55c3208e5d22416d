"""`rigdyno forecast`: throughput on more devices than were measured, from points of runs or of a CSV file.

Times for whole volumes belong in features/forecast_volume/.
"""

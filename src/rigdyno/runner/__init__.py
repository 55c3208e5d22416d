"""Turn cells into records: orchestrate, start and collect processes, warm up, time the steps, sample.

It draws nothing, it calls an observer. Which process starts how belongs in launchers/.
"""

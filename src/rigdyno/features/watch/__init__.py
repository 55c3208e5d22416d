"""`rigdyno watch`: show the machine's probes live, and serve them to Prometheus.

Reading them belongs in probes/.
"""

"""`rigdyno run all`: share the time between suites, run them one after the other, and draw the card.

The folder of a campaign belongs in store/campaign.py, because other verbs find runs in it.
"""

"""Each file is one way in which a batch changes the parameters: plain, or private by one of several engines.

A private update clips before it sums over ranks. Clipping and accounting themselves belong in engines/dp/.
"""

"""Each file is one probe: it reads power, temperature, load or memory as channels.

A probe only reads. Energy and usage are computed in analyse/.
"""

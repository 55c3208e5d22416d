"""The verbs of the command line. Each file is one verb: it parses flags, calls the API or a feature, prints the result.

Heavy imports stay inside functions: --help must answer at once. Logic belongs in the core or in features/.
"""

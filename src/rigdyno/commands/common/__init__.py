"""Code that several verbs share: options, exit codes, exports and the HTML page. Files here are not verbs."""

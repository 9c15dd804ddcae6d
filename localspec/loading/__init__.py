"""From a typed request to loaded models, step by step.

`request` says what is asked for; `planning` finds and checks the files and makes them fit, from
their headers alone; `load` loads them; `measuring` gives the automatic gamma its costs, stored
ones or a measurement of seconds. `opening` chooses the pair that the chat begins with, `expected`
tells the speed before anything is loaded, `tuning` measures thoroughly.
"""

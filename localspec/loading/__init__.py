"""From a typed request to loaded models, step by step.

`request` says what is asked for; `planning` finds and checks the files and makes them fit, from
their headers alone; `models` loads them; `load` makes a session of them, or of the pair that the
chat used last; `measuring` gives the automatic gamma its costs, stored ones or a measurement of
seconds. `expected` tells the speed before anything is loaded, `answering` answers one prompt,
`tuning` measures thoroughly, and `results` says what comes of both.
"""

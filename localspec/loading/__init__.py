"""From a typed request to loaded models, step by step.

`load_request` defines what can be asked for. `planning` finds and checks the files and plans the
memory from their headers alone. `model_loader` loads them. `load` turns them, or the pair that was
used last, into a session. `measurements` gives the automatic gamma its costs, stored or measured
within seconds, and predicts the speed before anything is loaded. `one_answer` answers a single
prompt, and `results` holds what requests return.
"""

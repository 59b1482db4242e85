"""Batches: files of requests in OpenAI's format, answered once each, by one worker or many: `edgekv batch`.

Needs the extra: pip install 'edgekv[server]'.

    requests.py, results.py    both files; conditions.py what a batch was begun with
    endpoints.py               what a request asks of the model, and what comes of it, as the server has it
    readings.py, beginnings.py what requests begin with alike, and is read once
    dealing.py, seats.py       who answers which request; workers of this machine and of a cluster
    answering.py               a worker's own part
    batch.py                   all of it
"""

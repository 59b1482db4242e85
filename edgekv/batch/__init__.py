"""Batches: files of requests in OpenAI's format, answered once each, by one worker or many: `edgekv batch`.

Needs the extra `server`.

    requests.py, results_file.py       both files; run_config.py has the options that a batch was begun with
    endpoints.py                       bodies become requests to the model, and events become replies, as in the server
    prompt_plan.py, prefix_groups.py   prefixes that several requests have in common, and that are read once
    sharding.py, workers.py            shards of requests for workers of this machine or of a cluster
    worker.py                          the part of one worker
    batch.py                           all of it
"""

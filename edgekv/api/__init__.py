"""APIs without HTTP, one a module: it makes a request of a body, and a reply of the request's events, for batches, too.

reply_request.py           a request to the model and the events of its reply, in no API's words
api_errors.py              errors of requests, which each API renders
json_stream.py             bodies for clients, whose long lists are made while they are written
"""

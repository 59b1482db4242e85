"""APIs without HTTP: each endpoint makes a request of a body, and a reply of the request's events, for batches, too."""

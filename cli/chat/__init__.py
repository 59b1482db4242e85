"""A conversation at a terminal: input, replies, and commands of a chat."""

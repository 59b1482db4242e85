"""A conversation at a terminal: what is typed, how a reply is shown, what the commands of a chat need."""
